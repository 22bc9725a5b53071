"""`eligo shots evaluate`: compare a selector with simple ones, and with a teacher's choices."""

from pathlib import Path
from typing import Any, Literal

from eligo.cli.console import OutFile, print_result, write_result_file
from eligo.cli.flags import Count
from eligo.errors import InputError
from eligo.io.files import check_file


def run(
    selector: Path = Path("runs/shots_v3_scores"),
    data: Path | None = None,
    taught: Path | None = None,
    embedded: Path | None = None,
    model: str | None = None,
    url: str | None = None,
    shots: tuple[Count, ...] = (1, 2, 4),
    num_queries: Count | None = None,
    batch_size: Count | None = None,
    model_version: Literal["v0", "v1", "v2", "v3"] | None = None,
    device: str = "auto",
    per_query: Path | None = None,
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Compare a selector with a teacher's choices (--taught), and by a host's answers (--data).

    Args:
        selector: Folder of a run of `eligo shots train`, or of its selector. With --embedded or
            --data also a model: a folder of `eligo shots convert`, a checkpoint of a run, a shipped
            model, or with --model_version a file of weights (.pth).
        data: Folder of `eligo shots embed`, with the same examples and with queries that were not
            trained on. Compared with no, random, nearest, MMR, DPP and BM25 examples of the whole
            pool; a lead is the selector's mean less that of the row.
        taught: Folder of `eligo shots teach`, with records that were not trained on.
        embedded: Folder of `eligo shots embed` with the examples to choose from; by default those
            of the selector, else of --data.
        model: Folder or hub name of the host that answers --data; none: answers are compared by
            shared pairs of words (text only).
        url: Address of an OpenAI-compatible server that runs --model (its name there), such as
            http://localhost:8000/v1; a key comes from ELIGO_API_KEY or OPENAI_API_KEY.
        shots: The numbers of examples to try.
        num_queries: Use only this many queries, from the first; by default all.
        batch_size: Most prompts per forward pass; by default as many as suit the device.
        model_version: Refuse a selector of another version.
        device: Where the host runs: auto, cpu or cuda.
        per_query: Also write picks, log-probability and answer of each query, number of shots and
            selector to this file (JSON lines).
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if data is None and taught is None:
        raise InputError("give --taught (a teacher's records), or --data (queries to answer)")
    if per_query is not None:
        if data is None:
            raise InputError("--per_query goes with --data, the queries to answer")
        check_file(per_query)
    from eligo.shots.config import RecordsConfig
    from eligo.shots.inference.embed import open_embedded
    from eligo.shots.inference.evaluate import answering, ranking
    from eligo.shots.inference.load import check_examples, is_bare, load_pipeline
    from eligo.shots.training.train import load_records

    if embedded is None and is_bare(selector):
        embedded = data
    pipeline = load_pipeline(selector, embedded, model_version=model_version)
    measured: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    if taught is not None:
        records = load_records(RecordsConfig(path=taught, embedded=data), 32, 0)
        check_examples(pipeline, records.pool, taught)
        measured["ranking"] = ranking(pipeline, records.labelled.records)
    if data is not None:
        pool, queries, _ = open_embedded(data)
        check_examples(pipeline, pool, data)
        host = {"model": model, "url": url, "batch_size": batch_size, "device": device}
        answered = answering(pipeline, queries, shots, host, num_queries)
        measured["queries"] = {"answered": len(answered.queries), "of": len(queries)}
        tables = answered.tables()
        if per_query is not None:
            answered.save(per_query)
    write_result_file(out, device, measured | tables)
    if not json:
        tables = {name: _intervals(rows) for name, rows in tables.items()}
    print_result(measured | tables, json)


def _intervals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with each interval in one cell, so that a table fits 80 columns."""
    from eligo.shots.inference.evaluate import LEAD

    cell = "{:.3f} ({:.3f} to {:.3f})".format
    return [
        {"shots": row["shots"], "examples": row["examples"]}
        | {"mean": cell(row["mean"], row["from"], row["to"])}
        | {"lead": cell(*(row[key] for key in LEAD)) if "lead" in row else None}
        for row in rows
    ]
