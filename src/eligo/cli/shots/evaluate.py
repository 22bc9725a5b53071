"""`eligo shots evaluate`: what a trained selector is worth, beside nearest and random examples."""

from pathlib import Path
from typing import Any

from eligo.cli.console import OutFile, print_result, write_result_file
from eligo.cli.flags import Count
from eligo.errors import InputError


def run(
    selector: Path = Path("runs/shots_v1"),
    data: Path | None = None,
    taught: Path | None = None,
    model: str | None = None,
    shots: Count = 6,
    num_queries: Count | None = None,
    batch_size: Count = 16,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Compare a selector with a teacher's choices (--taught), and by a host's answers (--data).

    Args:
        selector: Folder of a run of `eligo shots train`, or of its selector.
        data: Folder of `eligo shots embed`, with the same examples and queries that were not
            learned from; every number of shots from 0 on is tried on them.
        taught: Folder of `eligo shots teach`, whose records were not learned from.
        model: Folder or hub name of the host that answers --data; none: answers are compared by
            shared pairs of words (text only).
        shots: The largest number of examples.
        num_queries: Only the first so many; by default all.
        batch_size: Prompts read at a time.
        device: Where the host runs: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if data is None and taught is None:
        raise InputError("give --taught (a teacher's records), or --data (queries to answer)")
    from eligo.config import load_config
    from eligo.shots.config import RecordsConfig
    from eligo.shots.hosts.config import ShotsHostConfig
    from eligo.shots.inference.evaluate import answering, ranking
    from eligo.shots.inference.folder import open_embedded
    from eligo.shots.inference.predict import open_selector
    from eligo.shots.training.train import open_records

    deployed = open_selector(selector)
    found: dict[str, Any] = {}
    if taught is not None:
        opened = open_records(RecordsConfig(path=taught, embedded=data), 32, 0)
        _same_pool(deployed, opened.pool, taught)
        found["ranking"] = ranking(deployed, opened.lessons.records)
    if data is not None:
        pool, queries, _ = open_embedded(data)
        _same_pool(deployed, pool, data)
        told = {"model": model, "batch_size": batch_size, "device": device, **deployed.prompt}
        host = load_config(ShotsHostConfig, None, told)
        scorer, generator = _asked(host, pool, queries)
        found["answers"] = answering(deployed, queries, shots, scorer, generator, num_queries)
    write_result_file(out, device, found)
    print_result(found, json)


def _asked(host: Any, pool: Any, queries: Any) -> tuple[Any, Any]:
    """What scores answers, and what gives them (nothing without a model)."""
    if host.model is None:
        from eligo.shots.teacher.overlap import OverlapScorer

        return OverlapScorer(pool, queries), None
    from eligo.shots.hosts.generator import HostGenerator
    from eligo.shots.hosts.load import load_reader
    from eligo.shots.hosts.scorer import HostScorer

    reader = load_reader(host)
    options = {"placement": host.placement, "batch_size": host.batch_size}
    return HostScorer(reader, pool, queries, **options), HostGenerator(
        reader, pool, queries, **options
    )


def _same_pool(deployed: Any, pool: Any, where: Path) -> None:
    mine, theirs = deployed.selector.pool.content_hash, pool.content_hash
    if mine != theirs:
        raise InputError(
            f"{where}: its examples have hash {theirs}, but the selector was trained on {mine}; "
            "embed the same examples in the same way"
        )
