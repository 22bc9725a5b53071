"""Records of a teacher, and of other programs, for training. Sections 2 and 9.

Scores are computed from the log-probabilities that were kept, so any objective can be asked for,
whichever one the beams were ranked by.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError
from eligo.io.reading import json_lines, read_object, reading
from eligo.shots.compat import Labelled, read_legacy
from eligo.shots.config import Objective
from eligo.shots.data.items import as_query
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.beam_search import Beam
from eligo.shots.teacher.shards import FORMAT, META, RECORDS, scores_file
from eligo.shots.teacher.teacher import Lesson

Labels = Literal["best", "weighted"]
OnBadLabel = Literal["error", "ignore"]
_TAUGHT = "what `eligo shots teach` writes: teach again"


@dataclass(frozen=True, eq=False)
class Lessons:
    """Records to learn from, and what was left out."""

    records: list[Record]
    bad_labels: int = 0


def read_meta(folder: Path) -> dict[str, Any]:
    """What a teacher's folder depends on."""
    path = folder / META
    if not path.is_file():
        raise InputError(f"{folder}: has no {META}; `eligo shots teach` writes it")
    meta = read_object(path, "`eligo shots teach`")
    if meta.get("format") != FORMAT:
        raise InputError(f"{path}: got format {meta.get('format')!r}, expected {FORMAT}")
    if missing := sorted({"pool", "queries", "objective", "sampler"} - set(meta)):
        raise InputError(f"{path}: has no {missing[0]}; expected {_TAUGHT}")
    return meta


def read_records(
    folder: Path,
    pool: Pool,
    queries: Pool,
    *,
    objective: Objective | None = None,
    labels: Labels = "best",
) -> Lessons:
    """What `eligo shots teach` wrote."""
    meta = read_meta(folder)
    for name, there in (("pool", pool), ("queries", queries)):
        if meta[name] != there.content_hash:
            raise InputError(
                f"{folder}: was taught on {name} of hash {meta[name]}, these have "
                f"{there.content_hash}; teach again, or give the folder it was taught on"
            )
    if not (folder / RECORDS).exists():
        raise InputError(f"{folder}: has no {RECORDS}: teaching is not finished; start it again")
    chosen: Objective = objective or meta["objective"]
    if chosen not in get_args(Objective):
        names = ", ".join(get_args(Objective))
        raise InputError(f"{folder / META}: got objective {chosen!r:.60}, expected one of {names}")
    records: list[Record] = []
    for lesson in read_lessons(folder, queries):
        kept = lesson.beams if labels == "weighted" else lesson.beams[:1]
        weights = _weights([beam.value for beam in kept])
        for beam, weight in zip(kept, weights, strict=True):
            picks = [lesson.candidates[place] for place in beam.picks]
            with reading(f"{folder / RECORDS}: {lesson.query.id}", _TAUGHT):
                scores = lesson.step_scores(beam.picks, chosen)
            records.append(
                Record(lesson.query, picks, lesson.candidates, step_scores=scores, weight=weight)
            )
    return Lessons(records)


def read_lessons(folder: Path, queries: Pool) -> Iterator[Lesson]:
    """The lessons themselves, with all that was scored; those without candidates are left out."""
    shard, tensors = None, {}
    for number, fields in json_lines(folder / RECORDS):
        beams = fields.get("beams")
        if not isinstance(beams, list):
            raise InputError(f"{folder / RECORDS}:{number}: beams: missing, expected {_TAUGHT}")
        if not beams:
            continue  # a query without candidates: nothing to learn from
        with reading(f"{folder / RECORDS}:{number}", _TAUGHT):
            if fields["shard"] != shard:  # they come one shard after the other
                shard = int(fields["shard"])
                tensors = _tensors(folder / scores_file(shard))
            lesson = _lesson(fields, tensors, queries)
        yield lesson


def _lesson(fields: dict[str, Any], tensors: Mapping[str, Tensor], queries: Pool) -> Lesson:
    names = [str(name) for name in fields["pool"]]
    place = {name: position for position, name in enumerate(names)}
    start, end = map(int, fields["rows"])
    states = tensors["states"][start:end]
    if not 0 <= start < end or len(states) < end - start:
        raise ValueError(f"rows are {start} to {end} of {len(tensors['states'])} in the scores")
    return Lesson(
        as_query(queries, int(queries.rows([str(fields["query_id"])])[0])),
        names,
        float(fields["baseline"]),
        int(tensors["num_tokens"][start]),
        [
            Beam(
                tuple(place[name] for name in beam["ids"]),
                float(beam["value"]),
                tuple(map(float, beam["step_values"])),
            )
            for beam in fields["beams"]
        ],
        states,
        tensors["logprob"][start:end, : len(names)],
    )


def read_legacy_records(
    path: Path,
    sampler: Sampler,
    queries: Pool,
    *,
    labels: Labels = "best",
    on_bad_label: OnBadLabel = "error",
) -> Lessons:
    """The V3 guide's or Lever-LM's file; they name no candidates, so the sampler draws them."""
    records: list[Record] = []
    bad = 0
    for lists in read_legacy(path):
        kept = lists if labels == "weighted" else lists[:1]
        query = as_query(queries, int(queries.rows([kept[0].query])[0]))
        weights = _weights([one.value or 0.0 for one in kept])
        for one, weight in zip(kept, weights, strict=True):
            places = _good_places(one, sampler.pool, query, on_bad_label, f"{path}: {one.query}")
            bad += len(one.picks) - len(places)
            if not places:
                continue
            picks = [one.picks[place] for place in places]
            scores = None if one.scores is None else [one.scores[place] for place in places]
            names = sampler.with_picks(query, picks)
            records.append(Record(query, picks, names, scores=scores, weight=weight))
    return Lessons(records, bad)


def _tensors(path: Path) -> dict[str, Tensor]:
    with reading(path, "scores of `eligo shots teach`: teach again"):
        return load_file(path)


def _weights(values: Sequence[float]) -> list[float]:
    """Softmax of z-scores; equal values weigh the same."""
    told = torch.tensor(values)
    spread = told.std(correction=0)
    z = (told - told.mean()) / spread if spread > 1e-6 else torch.zeros_like(told)
    return z.softmax(0).tolist()


def _good_places(
    one: Labelled, pool: Pool, query: Query, on_bad_label: OnBadLabel, where: str
) -> list[int]:
    """Places of picks that are in the pool, come once, and do not leak."""
    times = Counter(one.picks)
    allowed = pool.allowed(query)
    good, seen = [], set()
    for place, name in enumerate(one.picks):
        why = None
        if name not in pool:
            why = "is not in the pool"
        elif name in seen:
            why = f"comes {times[name]} times"
        elif not allowed[pool.rows([name])].all():
            raise InputError(
                f"{where}: example {name!r} is the query itself, or of its group or of another "
                "domain: its answer would leak"
            )
        if why is None:
            good.append(place)
            seen.add(name)
        elif on_bad_label == "error":
            raise InputError(
                f"{where}: example {name!r} {why}; correct the file, or leave such labels out with "
                "--data.on_bad_label ignore"
            )
    return good
