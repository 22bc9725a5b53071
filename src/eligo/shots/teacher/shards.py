"""Files of a teacher, a shard of queries at a time. Section 2, Files.

    meta.json                    what everything depends on; a restart must agree with it
    host.json                    one value of every matrix of the host, likewise
    records.jsonl                a line for each query: candidates, beams, where its scores stand
    scores-00000.safetensors     of a shard's queries: states, logprob, num_tokens
    parts/00000.jsonl            lines of a finished shard, until all are finished
    skipped.jsonl, failed.jsonl  queries without a lesson, and why

    parts/00000.safetensors      what was done of a shard that a signal or an error broke off

A shard is listed by its part, which is written last and whole: a killed run leaves either a
finished shard or nothing of it, and does the rest when it is started again. A run that is stopped
(Ctrl-C, SIGTERM, an error) leaves the queries that it has done, too, unless Ray's workers did them.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from eligo.errors import InputError
from eligo.io.files import remove_file, remove_folder, write_text
from eligo.io.reading import json_lines, read_json, reading
from eligo.io.tensors import save_tensors
from eligo.pretrained.identity import same_weights, sampled_weights
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.teacher.teacher import Lesson

FORMAT = 1
META, HOST, RECORDS, PARTS = "meta.json", "host.json", "records.jsonl", "parts"
DATA = "data"
"""In meta.json: where pool and queries lay. Folders may move: it is no part of the agreement."""
SKIPPED, FAILED = "skipped.jsonl", "failed.jsonl"
_TRIES = 3
_LINES = "lines"


def scores_file(shard: int) -> str:
    """The name of a shard's tensors."""
    return f"scores-{shard:05d}.safetensors"


def write_shard(
    folder: Path, shard: int, queries: Sequence[Any], teach: Callable[[Any], Lesson]
) -> None:
    """Teach a shard's queries and write it; a query that fails three times is listed as failed."""
    broken_off = _part(folder, shard).with_suffix(".safetensors")
    lines, tables = _read_broken_off(broken_off)
    start = sum(len(table["states"]) for table in tables)
    try:
        for query in queries[len(lines) :]:
            outcome = _taught(query, teach)
            if isinstance(outcome, dict):
                lines.append({"query_id": query.id, **outcome})
                continue
            end = start + len(outcome.states)
            tables.append(_table(outcome))
            lines.append({**outcome.as_line(), "shard": shard, "rows": [start, end]})
            start = end
    except BaseException:
        if lines:
            save_tensors(broken_off, _joined(tables), {_LINES: json.dumps(lines)})
        raise
    if tables:
        save_tensors(folder / scores_file(shard), _joined(tables))
    write_text(_part(folder, shard), _as_lines(lines))
    remove_file(broken_off)


def _table(lesson: Lesson) -> dict[str, torch.Tensor]:
    tokens = torch.full((len(lesson.states),), lesson.num_tokens, dtype=torch.int32)
    return {"states": lesson.states, "logprob": lesson.logprob, "num_tokens": tokens}


def _joined(tables: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    width = max((table["logprob"].shape[1] for table in tables), default=0)
    even = [{**table, "logprob": _widened(table["logprob"], width)} for table in tables]
    return {name: torch.cat([table[name] for table in even]) for name in (even[0] if even else ())}


def _read_broken_off(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, torch.Tensor]]]:
    """Lines and scores of the first queries of a shard; nothing if it was not begun."""
    if not path.exists():
        return [], []
    expected = "what a stopped `eligo shots teach` keeps: remove it to teach this shard again"
    with reading(path, expected), safe_open(path, "pt") as file:
        lines = [dict(line) for line in json.loads((file.metadata() or {})[_LINES])]
        table = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if table:
            table = {name: table[name] for name in ("states", "logprob", "num_tokens")}
    return lines, [table] if table else []


def is_listed(folder: Path, shard: int) -> bool:
    """Whether a shard is finished, and none of its queries failed."""
    part = _part(folder, shard)
    return part.exists() and not any("error" in line for line in _read(part))


def finish(folder: Path, num_shards: int) -> tuple[int, int, int]:
    """Join the parts; counts of lessons, queries passed over, queries that failed."""
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
        # All at once, whenever a kill comes: a shard without its part would be taught again.
        remove_folder(folder / PARTS)
    return len(taught), len(skipped), len(failed)


def agree_on_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write meta.json, or make sure that the one there says the same."""
    path = folder / META
    if not path.exists():
        write_text(path, json.dumps(meta, indent=1) + "\n")
        return
    there = read_json(path)
    if not isinstance(there, dict):
        raise InputError(f"{path}: got {there!r:.60}, expected an object; choose another --out")
    different = [key for key in meta if key != DATA and there.get(key) != meta[key]]
    if different:
        key = different[0]
        raise InputError(
            f"{folder}: was begun with {key} {there.get(key)!r}, now it is {meta[key]!r}; choose "
            "another --out, or start it as before"
        )


def agree_on_host(folder: Path, model: Any) -> None:
    """Write host.json, or refuse a host whose weights changed under the same name."""
    path = folder / HOST
    if not path.exists():
        write_text(path, json.dumps(sampled_weights(model), indent=1) + "\n")
        return
    there = read_json(path)
    with reading(path, "what `eligo shots teach` writes: remove it if the host is the same"):
        weights = {str(name): float(value) for name, value in there.items()}
    if not same_weights(model, weights):
        raise InputError(
            f"{folder}: was begun with a host of this name with other weights; choose another "
            "--out, or give the host of before"
        )


def _taught(query: Any, teach: Callable[[Any], Lesson]) -> Lesson | dict[str, str]:
    error: Exception | None = None
    for _ in range(_TRIES):
        try:
            return teach(query)
        except UnscorableError as reason:
            return {"skipped": str(reason)}
        except InputError:
            raise  # a mistake in the data or the settings: every query would fail alike
        except Exception as reason:
            error = reason
    return {"error": f"{type(error).__name__}: {error}"}


def _widened(rows: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=torch.nan)


def _part(folder: Path, shard: int) -> Path:
    return folder / PARTS / f"{shard:05d}.jsonl"


def _read(path: Path) -> list[dict[str, Any]]:
    return [fields for _, fields in json_lines(path)]


def _as_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
