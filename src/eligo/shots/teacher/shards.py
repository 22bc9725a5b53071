"""Files of a teacher, written one shard of queries at a time.

    meta.json                    all settings; a restart must have the same
    host.json                    one value of every matrix of the host; a restart must have the same
    records.jsonl                a line per query: candidates, beams, location of its scores
    scores-00000.safetensors     of a shard's queries: states, logprob, num_tokens
    parts/00000.jsonl            lines of a finished shard, until all are finished
    parts/00000.safetensors      the finished queries of a shard that was interrupted
    skipped.jsonl, failed.jsonl  queries without a result, and why

The part of a shard is written last and atomically: a killed run leaves a finished shard or nothing
of it, and a restart does the rest. An interrupted run (Ctrl-C, SIGTERM, an error) also keeps the
queries that it finished, unless they ran on Ray.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.files import remove_file, remove_folder, write_text
from eligo.io.reading import json_lines, read_json, reading
from eligo.io.tensors import save_tensors
from eligo.pretrained.identity import same_weights, sampled_weights
from eligo.shots.data.query import Query
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.teacher.beam_search import beam_difference
from eligo.shots.teacher.teacher import TeacherResult

FORMAT = 1
META, HOST, RECORDS, PARTS = "meta.json", "host.json", "records.jsonl", "parts"
DATA = "data"
"""Key in meta.json: the folder of pool and queries. It may differ at a restart: folders move."""
_NEW_KEYS = {"beam_diversity": 0.0}
"""Keys that folders of older versions do not have, with what they did."""
SKIPPED, FAILED = "skipped.jsonl", "failed.jsonl"
_TRIES = 3
_LINES = "lines"


def scores_file(shard: int) -> str:
    """Return the name of a shard's file of scores."""
    return f"scores-{shard:05d}.safetensors"


def write_shard(
    folder: Path, shard: int, queries: Sequence[Query], teach: Callable[[Query], TeacherResult]
) -> None:
    """Teach a shard's queries and write it; a query that fails three times is listed as failed."""
    interrupted = _part(folder, shard).with_suffix(".safetensors")
    lines, tables = _read_interrupted(interrupted)
    start = sum(len(table["states"]) for table in tables)
    try:
        for query in queries[len(lines) :]:
            result = _teach(query, teach)
            if isinstance(result, dict):
                lines.append({"query_id": query.id, **result})
                continue
            end = start + len(result.states)
            tables.append(_table(result))
            lines.append({**result.as_line(), "shard": shard, "rows": [start, end]})
            start = end
    except BaseException:
        if lines:
            save_tensors(interrupted, _joined(tables), {_LINES: json.dumps(lines)})
        raise
    if tables:
        save_tensors(folder / scores_file(shard), _joined(tables))
    write_text(_part(folder, shard), _as_lines(lines))
    remove_file(interrupted)


def _table(result: TeacherResult) -> dict[str, Tensor]:
    tokens = torch.full((len(result.states),), result.num_tokens, dtype=torch.int32)
    return {"states": result.states, "logprob": result.logprob, "num_tokens": tokens}


def _joined(tables: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate tables; rows of fewer candidates are padded with NaN."""
    width = max((table["logprob"].shape[1] for table in tables), default=0)
    joined = {name: [table[name] for table in tables] for name in (tables[0] if tables else ())}
    for number, rows in enumerate(joined.get("logprob", ())):
        joined["logprob"][number] = F.pad(rows, (0, width - rows.shape[1]), value=torch.nan)
    return {name: torch.cat(parts) for name, parts in joined.items()}


def _read_interrupted(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Tensor]]]:
    """Lines and scores of the finished queries of an interrupted shard, if there are any."""
    if not path.exists():
        return [], []
    expected = "what a stopped `eligo shots teach` keeps: remove it to teach this shard again"
    with reading(path, expected), safe_open(path, "pt") as file:
        lines = [dict(line) for line in json.loads((file.metadata() or {})[_LINES])]
        table = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if table:
            table = {name: table[name] for name in ("states", "logprob", "num_tokens")}
    return lines, [table] if table else []


def is_finished(folder: Path, shard: int) -> bool:
    """Whether a shard is finished and none of its queries failed."""
    part = _part(folder, shard)
    return part.exists() and not any("error" in line for line in _read(part))


def finish(folder: Path, num_shards: int) -> tuple[int, int, int]:
    """Join the parts; return the numbers of taught, skipped and failed queries."""
    lines = [line for shard in range(num_shards) for line in _read(_part(folder, shard))]
    failed = [line for line in lines if "error" in line]
    skipped = [line for line in lines if "skipped" in line]
    taught = [line for line in lines if "beams" in line]
    for name, rows in ((SKIPPED, skipped), (FAILED, failed)):
        if rows:
            write_text(folder / name, _as_lines(rows))
        else:
            remove_file(folder / name)
    write_text(folder / RECORDS, _as_lines(taught))
    if not failed:  # else a restart tries their shards again
        # Atomic, for a kill: a shard without its part would be taught again.
        remove_folder(folder / PARTS)
    return len(taught), len(skipped), len(failed)


def mean_difference(folder: Path) -> float | None:
    """Return the mean `beam_difference` of the taught queries; None if no query has two beams."""
    shares = [
        beam_difference([beam["ids"] for beam in line["beams"]]) for line in _read(folder / RECORDS)
    ]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def check_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write meta.json, or refuse other settings than those in it."""
    path = folder / META
    if not path.exists():
        write_text(path, json.dumps(meta, indent=1) + "\n")
        return
    written = read_json(path)
    if not isinstance(written, dict):
        raise InputError(f"{path}: got {written!r:.60}, expected an object; choose another --out")
    for key, value in meta.items():
        before = written.get(key, _NEW_KEYS.get(key))
        if key != DATA and before != value:
            raise InputError(
                f"{folder}: was started with {key} {before!r}, got {value!r}; choose another "
                "--out, or restart with the same settings"
            )


def check_host(folder: Path, model: Any) -> None:
    """Write host.json, or refuse a host whose weights changed under the same name."""
    path = folder / HOST
    if not path.exists():
        write_text(path, json.dumps(sampled_weights(model), indent=1) + "\n")
        return
    written = read_json(path)
    with reading(path, "what `eligo shots teach` writes: remove it if the host is the same"):
        weights = {str(name): float(value) for name, value in written.items()}
    if not same_weights(model, weights):
        raise InputError(
            f"{folder}: was started with a host of this name with other weights; choose another "
            "--out, or give the same host"
        )


def _teach(query: Query, teach: Callable[[Query], TeacherResult]) -> TeacherResult | dict[str, str]:
    """Teach one query; return a dict with the reason if there is no result."""
    error: Exception | None = None
    for _ in range(_TRIES):
        try:
            return teach(query)
        except UnscorableError as reason:
            return {"skipped": str(reason)}
        except InputError:
            raise  # a mistake in the data or the settings: all queries would fail
        except Exception as reason:
            error = reason
    return {"error": f"{type(error).__name__}: {error}"}


def _part(folder: Path, shard: int) -> Path:
    return folder / PARTS / f"{shard:05d}.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    return [fields for _, fields in json_lines(path)]


def _as_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
