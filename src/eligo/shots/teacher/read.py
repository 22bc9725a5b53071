"""Read the records of a teacher, or of other programs, for training.

Scores are computed from the stored log-probabilities, so any objective is available, not only
the one that ranked the beams.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor

from eligo.config.problems import did_you_mean
from eligo.errors import InputError
from eligo.io.reading import json_lines, read_object, reading
from eligo.shots.compat import Labelled, read_legacy
from eligo.shots.config import Objective
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.beam_search import Beam
from eligo.shots.teacher.shards import FORMAT, META, RECORDS, scores_file
from eligo.shots.teacher.teacher import TeacherResult, is_noise

Labels = Literal["best", "weighted"]
OnBadLabel = Literal["error", "ignore"]
NOISE_WEIGHT = 0.1
"""Of a record whose best list is no better than no examples: which list wins is then noise."""
_TAUGHT = "what `eligo shots teach` writes: teach again"


@dataclass(frozen=True, eq=False)
class LabelledRecords:
    """Records to train on."""

    records: list[Record]
    bad_labels: int = 0
    """Labels that were left out."""
    noise: int = 0
    """Queries whose best list is no better than no examples; their records weigh less."""


def read_meta(folder: Path) -> dict[str, Any]:
    """Read and check meta.json."""
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
) -> LabelledRecords:
    """Read what `eligo shots teach` wrote."""
    meta = read_meta(folder)
    for name, loaded in (("pool", pool), ("queries", queries)):
        if meta[name] != loaded.content_hash:
            raise InputError(
                f"{folder}: was taught on {name} of hash {meta[name]}, got hash "
                f"{loaded.content_hash}; teach again, or give the folder it was taught on"
            )
    if not (folder / RECORDS).exists():
        raise InputError(f"{folder}: has no {RECORDS}: teaching is not finished; start it again")
    chosen: Objective = objective or meta["objective"]
    if chosen not in get_args(Objective):
        names = ", ".join(get_args(Objective))
        raise InputError(f"{folder / META}: got objective {chosen!r:.60}, expected one of {names}")
    records: list[Record] = []
    noise = 0
    for result in read_results(folder, queries):
        is_bad = is_noise(result.beams[0].value, result.baseline, meta["objective"])
        share = NOISE_WEIGHT if is_bad else 1.0
        noise += is_bad
        beams = result.beams if labels == "weighted" else result.beams[:1]
        weights = _weights([beam.value for beam in beams])
        for beam, weight in zip(beams, weights, strict=True):
            picks = [result.candidates[position] for position in beam.picks]
            with reading(f"{folder / RECORDS}: {result.query.id}", _TAUGHT):
                scores = result.step_scores(beam.picks, chosen)
            named = (result.query, picks, result.candidates)
            records.append(Record(*named, step_scores=scores, weight=share * weight))
    return LabelledRecords(records, noise=noise)


def read_results(folder: Path, queries: Pool) -> Iterator[TeacherResult]:
    """Yield the teacher's results with all scores; queries without candidates are left out."""
    shard, tensors = None, {}
    for number, fields in json_lines(folder / RECORDS):
        beams = fields.get("beams")
        if not isinstance(beams, list):
            raise InputError(f"{folder / RECORDS}:{number}: beams: missing, expected {_TAUGHT}")
        if not beams:
            continue  # a query without candidates
        with reading(f"{folder / RECORDS}:{number}", _TAUGHT):
            if fields["shard"] != shard:  # records are ordered by shard
                shard = int(fields["shard"])
                path = folder / scores_file(shard)
                with reading(path, "scores of `eligo shots teach`: teach again"):
                    tensors = load_file(path)
            result = _result(fields, tensors, queries)
        yield result


def _result(fields: dict[str, Any], tensors: Mapping[str, Tensor], queries: Pool) -> TeacherResult:
    names = [str(name) for name in fields["pool"]]
    positions = {name: position for position, name in enumerate(names)}
    start, end = map(int, fields["rows"])
    states = tensors["states"][start:end]
    if not 0 <= start < end or len(states) < end - start:
        raise ValueError(f"rows are {start} to {end} of {len(tensors['states'])} in the scores")
    return TeacherResult(
        queries.query(int(queries.rows([str(fields["query_id"])])[0])),
        names,
        float(fields["baseline"]),
        int(tensors["num_tokens"][start]),
        [
            Beam(
                tuple(positions[name] for name in beam["ids"]),
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
) -> LabelledRecords:
    """Read a JSON file of lists without candidates (docs/sources.md); the sampler draws these."""
    records: list[Record] = []
    bad = 0
    for lists in read_legacy(path):
        kept = lists if labels == "weighted" else lists[:1]
        name = kept[0].query
        if name not in queries:
            raise InputError(
                f"{path}: query {name!r} is not among the {len(queries)} embedded ones"
                f"{did_you_mean(name, queries.ids[:1000])}; embed the queries with the ids that "
                "this file has"
            )
        query = queries.query(int(queries.rows([name])[0]))
        weights = _weights([labelled.value or 0.0 for labelled in kept])
        for labelled, weight in zip(kept, weights, strict=True):
            where = f"{path}: {labelled.query}"
            positions = _good_positions(labelled, sampler.pool, query, on_bad_label, where)
            bad += len(labelled.picks) - len(positions)
            if not positions:
                continue
            picks, scores = [labelled.picks[n] for n in positions], None
            if labelled.scores is not None:
                scores = [labelled.scores[n] for n in positions]
            names = sampler.with_picks(query, picks)
            records.append(Record(query, picks, names, scores=scores, weight=weight))
    return LabelledRecords(records, bad)


def _weights(values: Sequence[float]) -> list[float]:
    """Softmax of z-scores; uniform for equal values."""
    scores = torch.tensor(values)
    spread = scores.std(correction=0)
    z = (scores - scores.mean()) / spread if spread > 1e-6 else torch.zeros_like(scores)
    return z.softmax(0).tolist()


def _good_positions(
    labelled: Labelled, pool: Pool, query: Query, on_bad_label: OnBadLabel, where: str
) -> list[int]:
    """Positions of picks that are in the pool, occur once, and do not leak the answer."""
    allowed = pool.allowed(query)
    good: dict[str, int] = {}
    for position, name in enumerate(labelled.picks):
        why = None
        if name not in pool:
            why = "is not in the pool"
        elif name in good:
            why = f"occurs {labelled.picks.count(name)} times"
        elif not allowed[pool.rows([name])].all():
            raise InputError(
                f"{where}: example {name!r} is the query itself, of its group or of another "
                "domain: its answer would leak"
            )
        if why is None:
            good[name] = position
        elif on_bad_label == "error":
            raise InputError(
                f"{where}: example {name!r} {why}; correct the file, or leave such labels out with "
                "--data.on_bad_label ignore"
            )
    return list(good.values())
