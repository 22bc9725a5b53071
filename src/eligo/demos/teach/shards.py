"""Files of a teacher, a shard of queries at a time. Section 2, Files.

    meta.json                    what everything depends on; a restart must agree with it
    records.jsonl                a line for each query: candidates, beams, where its scores stand
    scores-00000.safetensors     of a shard's queries: states, logprob, num_tokens
    parts/00000.jsonl            lines of a finished shard, until all are finished
    skipped.jsonl, failed.jsonl  queries without a lesson, and why

A shard is listed by its part, which is written last and whole: a killed run leaves either a
finished shard or nothing of it, and does the rest when it is started again.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eligo.demos.data.lines import read_lines
from eligo.demos.hosts.prompt import UnscorableError
from eligo.demos.teach.teacher import Lesson
from eligo.errors import InputError
from eligo.files import write_text, writing
from eligo.reading import read_json

FORMAT = 1
META, RECORDS, PARTS = "meta.json", "records.jsonl", "parts"
DATA = "data"
"""In meta.json: where pool and queries lay. Folders may move: it is no part of the agreement."""
SKIPPED, FAILED = "skipped.jsonl", "failed.jsonl"
_TRIES = 3


def scores_file(shard: int) -> str:
    """The name of a shard's tensors."""
    return f"scores-{shard:05d}.safetensors"


def write_shard(
    folder: Path, shard: int, queries: Sequence[Any], teach: Callable[[Any], Lesson]
) -> None:
    """Teach a shard's queries and write it; a query that fails three times is listed as failed."""
    lessons, lines, start = [], [], 0
    for query in queries:
        outcome = _taught(query, teach)
        if isinstance(outcome, dict):
            lines.append({"query_id": query.id, **outcome})
            continue
        end = start + len(outcome.states)
        lines.append({**outcome.as_line(), "shard": shard, "rows": [start, end]})
        lessons.append(outcome)
        start = end
    if lessons:
        width = max(lesson.logprob.shape[1] for lesson in lessons)
        tensors = {
            "states": torch.cat([lesson.states for lesson in lessons]),
            "logprob": torch.cat([_widened(lesson.logprob, width) for lesson in lessons]),
            "num_tokens": torch.cat(
                [torch.full((len(l.states),), l.num_tokens, dtype=torch.int32) for l in lessons]  # noqa: E741
            ),
        }
        with writing(folder / scores_file(shard)) as temporary:
            save_file(tensors, temporary)
    write_text(_part(folder, shard), _as_lines(lines))


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
            (folder / name).unlink(missing_ok=True)
    write_text(folder / RECORDS, _as_lines(taught))
    if not failed:  # else a restart tries their shards again
        # All at once, whenever a kill comes: a shard without its part would be taught again.
        shutil.rmtree((folder / PARTS).rename(folder / f".{PARTS}.tmp"))
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
    return [line.fields for line in read_lines(path)]


def _as_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
