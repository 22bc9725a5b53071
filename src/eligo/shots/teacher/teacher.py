"""The teacher's result for one query: a beam search over lists of examples, with all its scores.

With l the mean log-probability of the answer's tokens and P = exp(l), the value of a list is P
(objectives gain, actual) or l (logprob). The score of adding c to D is P(D+c) - P(D) (gain), P(D+c)
(actual) or l(D+c) - l(D) (logprob, the default: P saturates).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.errors import EligoError
from eligo.shots.config import Objective
from eligo.shots.data.query import Query
from eligo.shots.hosts.scorer import Scorer
from eligo.shots.teacher.beam_search import Beam, beam_search


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
    start = scorer.baseline(query)
    states: list[tuple[int, ...]] = []
    sums: list[Tensor] = []

    def extend(prefix: tuple[int, ...], positions: Sequence[int]) -> Tensor:
        picks, left = ([candidates[n] for n in part] for part in (prefix, positions))
        logprob = scorer.score(query, picks, left).logprob.float()
        row = torch.full((len(candidates),), torch.nan)
        row[list(positions)] = logprob
        states.append(prefix)
        sums.append(row)
        return list_value(logprob / start.num_tokens, objective)

    beams = beam_search(extend, len(candidates), shots, beam, diversity).beams
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
