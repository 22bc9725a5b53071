"""Files of a teacher, written one shard of queries at a time.

    meta.json                    all settings; a restart must have the same
    host.json                    one value of every matrix of the host; a restart must have the same
                                 (for a server: how it scores)
    records.jsonl                a line per query: candidates, beams, location of its scores
    scores-00000.safetensors     of a shard's queries: states, logprob, num_tokens
    parts/00000.jsonl            lines of a finished shard, until all are finished
    parts/00000.growing          lines and scores of the finished queries of an unfinished shard
    skipped.jsonl, failed.jsonl  queries without a result, and why

Finished queries are appended and synced at once; a killed run loses none of them. The part of a
shard is written last and atomically. Queries are taught in windows whose prompts share batches. A
window always holds the same queries, so that a restart computes exactly the same scores.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.files import GrowingFile, remove_file, remove_folder, write_bytes, write_text
from eligo.io.reading import json_lines, read_json, read_object, reading
from eligo.io.tensors import save_tensors
from eligo.pretrained.identity import same_weights, sampled_weights
from eligo.shots.config import Objective
from eligo.shots.data.query import Query
from eligo.shots.hosts.client import ServerDownError
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.teacher.beam_search import beam_difference
from eligo.shots.teacher.teacher import TeacherResult, is_noise

FORMAT = 1
META, HOST, RECORDS, PARTS = "meta.json", "host.json", "records.jsonl", "parts"
DATA = "data"
"""Key in meta.json: the folder of pool and queries. It may differ at a restart: folders move."""
URL = "url"
"""Key in meta.json: the address of the host's server, which may differ as well."""
_NEW_KEYS = {"beam_diversity": 0.0}
"""Keys that folders of older versions do not have, with what they did."""
SKIPPED, FAILED = "skipped.jsonl", "failed.jsonl"
_TRIES = 3
_LINE, _SCORES = "line", "scores"
_TABLE = ("states", "logprob", "num_tokens")

Teach = Callable[[Sequence[Query]], Sequence[TeacherResult | Exception]]
"""Returns a result of each query, or its error."""


def scores_file(shard: int) -> str:
    """Return the name of a shard's file of scores."""
    return f"scores-{shard:05d}.safetensors"


def write_shard(
    folder: Path,
    shard: int,
    queries: Sequence[Query],
    teach: Teach,
    *,
    window: int = 1,
    on_done: Callable[[int], None] | None = None,
) -> None:
    """Teach a shard's queries, `window` at a time, and write it.

    A query that fails three times is listed as failed. `on_done` is called with the number of
    finished queries.
    """
    path = _part(folder, shard).with_suffix(".growing")
    kept = GrowingFile(path)
    try:
        lines, tables = _read_growing(kept)
        for start in range(0, len(queries), window):
            end = min(start + window, len(queries))
            if end > len(lines):
                results = _taught(queries[start:end], teach)
                new = [_kept(q, r) for q, r in zip(queries[start:end], results, strict=True)]
                new = new[len(lines) - start :]  # the rest was written before a kill
                kept.write(b"".join(_as_bytes(*row) for row in new))
                kept.sync()
                lines += [line for line, _ in new]
                tables += [table for _, table in new]
            if on_done is not None:
                on_done(end)
    finally:
        kept.close()
    begin = 0
    for line, table in zip(lines, tables, strict=True):
        if table:
            end = begin + len(table["states"])
            line |= {"shard": shard, "rows": [begin, end]}
            begin = end
    scored = [table for table in tables if table]
    if scored:
        save_tensors(folder / scores_file(shard), _joined(scored))
    write_text(_part(folder, shard), _as_lines(lines))
    remove_file(path)


def _kept(
    query: Query, result: TeacherResult | dict[str, str]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The line of a query and its scores, if there are any."""
    if isinstance(result, dict):
        return {"query_id": query.id, **result}, {}
    return result.as_line(), _table(result)


def _as_bytes(line: dict[str, Any], table: dict[str, Tensor]) -> bytes:
    scores = b64encode(save(table)).decode() if table else None
    return (json.dumps({_LINE: line, _SCORES: scores}, ensure_ascii=False) + "\n").encode()


def _read_growing(file: GrowingFile) -> tuple[list[dict[str, Any]], list[dict[str, Tensor]]]:
    """Lines and scores of finished queries; half a line of a killed process is dropped."""
    file.cut(file.path.read_bytes().rfind(b"\n") + 1)
    lines, tables = [], []
    expected = "what `eligo shots teach` keeps: remove it to teach this shard again"
    for number, fields in json_lines(file.path):
        with reading(f"{file.path}:{number}", expected):
            lines.append(dict(fields[_LINE]))
            stored = load(b64decode(fields[_SCORES])) if fields[_SCORES] else {}
            tables.append({name: stored[name] for name in _TABLE} if stored else {})
    return lines, tables


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


def shard_files(folder: Path, shard: int) -> dict[str, bytes]:
    """Return the files of a finished shard by name, for a machine with a folder of its own."""
    part = _part(folder, shard)
    paths = [folder / HOST, folder / scores_file(shard), part]  # the part last, as in writing
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.exists()}


def keep_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of another machine, unless the folder is shared and has them."""
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            write_bytes(path, content)


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


def num_noise(folder: Path, objective: Objective) -> int:
    """Return the number of taught queries whose best list is no better than no examples."""
    lines = [line for line in _read(folder / RECORDS) if line["beams"]]
    return sum(is_noise(line["beams"][0]["value"], line["baseline"], objective) for line in lines)


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
        if key not in (DATA, URL) and before != value:
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


def check_scoring(folder: Path, scoring: str) -> None:
    """Write how a server scores to host.json, or refuse another way: scores would not compare."""
    path = folder / HOST
    if not path.exists():
        write_text(path, json.dumps({"scoring": scoring}) + "\n")
        return
    before = read_object(path, "`eligo shots teach`").get("scoring")
    if before != scoring:
        raise InputError(
            f"{folder}: was started with a server that scores by {before}, this one scores by "
            f"{scoring}; choose another --out, or use the same server"
        )


def _taught(queries: Sequence[Query], teach: Teach) -> list[TeacherResult | dict[str, str]]:
    """Teach queries together, then each that failed alone; a dict says why there is no result."""
    found: list[TeacherResult | dict[str, str]] = []
    for query, result in zip(queries, _tried(queries, teach), strict=True):
        for _ in range(_TRIES - 1):
            if isinstance(result, TeacherResult | UnscorableError):
                break
            (result,) = _tried([query], teach)
        if isinstance(result, UnscorableError):
            found.append({"skipped": str(result)})
        elif isinstance(result, Exception):
            found.append({"error": f"{type(result).__name__}: {result}"})
        else:
            found.append(result)
    return found


def _tried(queries: Sequence[Query], teach: Teach) -> Sequence[TeacherResult | Exception]:
    try:
        return teach(queries)
    except (InputError, ServerDownError):
        raise  # a mistake in the data or the settings, or no server: all queries would fail
    except Exception as error:
        return [error] * len(queries)


def _part(folder: Path, shard: int) -> Path:
    return folder / PARTS / f"{shard:05d}.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    return [fields for _, fields in json_lines(path)]


def _as_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
