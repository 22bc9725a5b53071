"""The teacher's result for one query: a beam search over lists of examples, with all its scores.

With l the mean log-probability of the answer's tokens and P = exp(l), the value of a list is P
(objectives gain, actual) or l (logprob). The score of adding c to D is P(D+c) - P(D) (gain), P(D+c)
(actual) or l(D+c) - l(D) (logprob, the default: P saturates).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.errors import EligoError
from eligo.shots.config import Objective
from eligo.shots.data.query import Query
from eligo.shots.hosts.scorer import PoolingScorer, Request, Scorer, Scores
from eligo.shots.teacher.beam_search import Beam, beam_search, beam_steps


def list_value(
    mean_logprob: Float[Tensor, "*lists"], objective: Objective
) -> Float[Tensor, "*lists"]:
    """Return the value of lists, by which beams are ranked."""
    return mean_logprob if objective == "logprob" else mean_logprob.exp()


def step_score(
    after: Float[Tensor, "*lists"], before: Float[Tensor, "*before"], objective: Objective
) -> Float[Tensor, "*lists"]:
    """Return the score of a step from the mean log-probabilities after and before it."""
    if objective == "actual":
        return after.exp()
    return list_value(after, objective) - list_value(before, objective)


def is_noise(best: float, baseline: float, objective: Objective) -> bool:
    """Whether the value of the best list is no better than that of no examples.

    `baseline`: mean log-probability without examples.

    >>> is_noise(-1.0, -0.5, "logprob"), is_noise(0.7, -0.5, "gain")
    (True, False)
    """
    return best <= float(list_value(torch.tensor(baseline), objective))


@dataclass(frozen=True, eq=False)
class TeacherResult:
    """The best lists of examples for a query, and everything that was scored."""

    query: Query
    candidates: Sequence[str]
    baseline: float
    """Mean log-probability of the answer without examples."""
    num_tokens: int
    beams: Sequence[Beam]
    """The best first; picks are positions among the candidates."""
    states: Int[Tensor, "states shots"]
    """Lists whose extensions were scored, padded with -1."""
    logprob: Float[Tensor, "states candidates"]
    """Sum over the answer's tokens with the candidate added; NaN: not scored."""

    def as_line(self) -> dict[str, Any]:
        """Return the line for records.jsonl, without the location of its scores."""
        beams = [
            {
                "ids": [self.candidates[position] for position in beam.picks],
                "value": beam.value,
                "step_values": list(beam.step_values),
            }
            for beam in self.beams
        ]
        return {
            "query_id": self.query.id,
            "group": self.query.group,
            "pool": list(self.candidates),
            "baseline": self.baseline,
            "beams": beams,
        }

    def step_scores(
        self, picks: Sequence[int], objective: Objective
    ) -> Float[Tensor, "picks candidates"]:
        """Return the score of each candidate at each step; NaN: not scored."""
        means = self.logprob / self.num_tokens
        before, steps = torch.tensor(self.baseline), []
        for step, pick in enumerate(picks):
            row = means[self._rows[tuple(picks[:step])]]
            steps.append(step_score(row, before, objective))
            before = row[pick]
        return torch.stack(steps)

    def shortened(
        self, shots: int, beam: int, objective: Objective, diversity: float = 0.0
    ) -> Sequence[Beam]:
        """Return the beams of the same search with fewer shots, from the scores that were kept."""
        means = self.logprob / self.num_tokens

        def extend(prefix: tuple[int, ...], positions: Sequence[int]) -> Tensor:
            return list_value(means[self._rows[prefix]][list(positions)], objective)

        return beam_search(extend, len(self.candidates), shots, beam, diversity).beams

    @cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        states = self.states.tolist()
        return {tuple(p for p in state if p >= 0): row for row, state in enumerate(states)}


Step = tuple[Sequence[str], Sequence[str] | None]
"""Examples, and candidates to add one of; None: score the examples as they are."""


def teach_query(
    query: Query,
    candidates: Sequence[str],
    scorer: Scorer,
    *,
    shots: int,
    beam: int,
    objective: Objective,
    diversity: float = 0.0,
) -> TeacherResult:
    """Find the best lists of `shots` candidates for a query; `diversity`: see `beam_search`."""
    search = _search(query, candidates, shots, beam, objective, diversity)

    def scored(prefix: Sequence[str], added: Sequence[str] | None) -> Scores:
        return scorer.baseline(query) if added is None else scorer.score(query, prefix, added)

    try:
        steps = next(search)
        while True:
            steps = search.send([scored(*step) for step in steps])
    except StopIteration as end:
        return end.value


def teach_together(
    queries: Sequence[Query],
    candidates: Sequence[Sequence[str]],
    scorer: PoolingScorer,
    *,
    shots: int,
    beam: int,
    objective: Objective,
    diversity: float = 0.0,
) -> list[TeacherResult | EligoError]:
    """The same for several queries step by step: the prompts of a step share batches.

    A query that cannot be taught has its error in place of a result.
    """
    found: list[TeacherResult | EligoError | None] = [None] * len(queries)
    searches = [
        _search(query, names, shots, beam, objective, diversity)
        for query, names in zip(queries, candidates, strict=True)
    ]
    waiting = {number: next(search) for number, search in enumerate(searches)}
    while waiting:
        requests = [Request(queries[number], _lists(waiting[number])) for number in waiting]
        scores = scorer.score_all(requests)
        for number, one in zip(list(waiting), scores, strict=True):
            steps = waiting.pop(number)
            if isinstance(one, EligoError):
                found[number] = one
                continue
            try:
                waiting[number] = searches[number].send(_split(one, steps))
            except StopIteration as end:
                found[number] = end.value
            except EligoError as error:
                found[number] = error
    return [one for one in found if one is not None]


def _lists(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """All lists of some steps."""
    return [
        names
        for prefix, added in steps
        for names in ([tuple(prefix)] if added is None else [(*prefix, name) for name in added])
    ]


def _split(scores: Scores, steps: Sequence[Step]) -> list[Scores]:
    """The scores of each step."""
    sizes = [1 if added is None else len(added) for _, added in steps]
    return [Scores(part, scores.num_tokens) for part in scores.logprob.split(sizes)]


def _search(
    query: Query,
    candidates: Sequence[str],
    shots: int,
    beam: int,
    objective: Objective,
    diversity: float,
) -> Generator[list[Step], Sequence[Scores], TeacherResult]:
    """Yield the steps to score next, and return the result."""
    search = beam_steps(len(candidates), shots, beam, diversity)
    states: list[tuple[int, ...]] = []
    sums: list[Tensor] = []
    start: Scores | None = None
    beams: Sequence[Beam] = []
    values: list[Tensor] | None = None
    while True:
        try:
            extensions = next(search) if values is None else search.send(values)
        except StopIteration as end:
            beams = end.value.beams
            break
        steps: list[Step] = [
            ([candidates[n] for n in prefix], [candidates[n] for n in left])
            for prefix, left in extensions
        ]
        if start is None:
            start, *scores = yield [((), None), *steps]
        else:
            scores = yield steps
        values = []
        for (prefix, left), one in zip(extensions, scores, strict=True):
            row = torch.full((len(candidates),), torch.nan)
            row[left] = one.logprob.float()
            states.append(prefix)
            sums.append(row)
            values.append(list_value(row[left] / start.num_tokens, objective))
    if start is None:  # no candidates
        (start,) = yield [((), None)]
    length = min(shots, len(candidates))
    if len(beams[0].picks) < length or not start.logprob.isfinite().all():
        raise EligoError(
            "the host's log-probability of the answer is NaN; half precision may be too narrow for "
            "it: try --host.dtype float32 (or bfloat16)"
        )
    table = torch.full((len(states), shots), -1, dtype=torch.int32)
    for row, prefix in enumerate(states):
        table[row, : len(prefix)] = torch.tensor(prefix, dtype=torch.int32)
    return TeacherResult(
        query,
        candidates,
        float(start.logprob[0]) / start.num_tokens,
        start.num_tokens,
        beams if candidates else [],
        table,
        torch.stack(sums) if sums else torch.zeros(0, len(candidates)),
    )
