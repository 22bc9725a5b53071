"""`eligo shots evaluate`: compare a trained selector with nearest and random examples."""

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
        data: Folder of `eligo shots embed`, with the same examples and with queries that were not
            trained on; every number of shots from 0 on is tried.
        taught: Folder of `eligo shots teach`, with records that were not trained on.
        model: Folder or hub name of the host that answers --data; none: answers are compared by
            shared pairs of words (text only).
        shots: The largest number of examples.
        num_queries: Use only this many queries, from the first; by default all.
        batch_size: Prompts per forward pass.
        device: Where the host runs: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if data is None and taught is None:
        raise InputError("give --taught (a teacher's records), or --data (queries to answer)")
    from eligo.shots.config import RecordsConfig
    from eligo.shots.inference.embed import open_embedded
    from eligo.shots.inference.evaluate import answering, ranking
    from eligo.shots.inference.predict import load_pipeline
    from eligo.shots.training.train import load_records

    pipeline = load_pipeline(selector)
    measured: dict[str, Any] = {}
    if taught is not None:
        records = load_records(RecordsConfig(path=taught, embedded=data), 32, 0)
        _check_pool(pipeline.learned.pool, records.pool, taught)
        measured["ranking"] = ranking(pipeline, records.labelled.records)
    if data is not None:
        pool, queries, _ = open_embedded(data)
        _check_pool(pipeline.learned.pool, pool, data)
        host = {"model": model, "batch_size": batch_size, "device": device}
        measured["answers"] = answering(pipeline, queries, shots, host, num_queries)
    write_result_file(out, device, measured)
    print_result(measured, json)


def _check_pool(expected: Any, pool: Any, where: Path) -> None:
    if expected.content_hash != pool.content_hash:
        raise InputError(
            f"{where}: its examples have hash {pool.content_hash}, but the selector was trained on "
            f"{expected.content_hash}; embed the same examples in the same way"
        )
