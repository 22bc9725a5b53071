"""One query's lesson: a beam search over lists of examples, with all that it scored. Section 2."""

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
from eligo.shots.teacher.objective import added, worth


@dataclass(frozen=True, eq=False)
class Lesson:
    """What was found for a query."""

    query: Query
    candidates: Sequence[str]
    baseline: float
    """Mean log-probability of the answer without examples."""
    num_tokens: int
    beams: Sequence[Beam]
    """The best first; picks are positions among the candidates."""
    states: Int[Tensor, "states shots"]
    """Lists whose extensions were scored, -1 behind their end."""
    logprob: Float[Tensor, "states candidates"]
    """Sum over the answer's tokens with the candidate added; NaN: not scored."""

    def as_line(self) -> dict[str, Any]:
        """Its line in records.jsonl, but for where its scores stand."""
        beams = [
            {
                "ids": [self.candidates[place] for place in beam.picks],
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
        """What each candidate adds behind the picks before it; NaN: not scored."""
        means = self.logprob / self.num_tokens
        before, steps = torch.tensor(self.baseline), []
        for step, pick in enumerate(picks):
            row = means[self._place(picks[:step])]
            steps.append(added(row, before, objective))
            before = row[pick]
        return torch.stack(steps)

    def shortened(self, shots: int, beam: int, objective: Objective) -> Sequence[Beam]:
        """What the same search finds for fewer shots, without asking anybody again."""
        means = self.logprob / self.num_tokens

        def extend(prefix: tuple[int, ...], places: Sequence[int]) -> Tensor:
            return worth(means[self._place(prefix)][list(places)], objective)

        return beam_search(extend, len(self.candidates), shots, beam).beams

    def _place(self, prefix: Sequence[int]) -> int:
        """The row of a list whose extensions were scored."""
        return self._rows[tuple(prefix)]

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
) -> Lesson:
    """The best lists of `shots` candidates for a query."""
    start = scorer.baseline(query)
    states: list[tuple[int, ...]] = []
    sums: list[Tensor] = []

    def extend(prefix: tuple[int, ...], places: Sequence[int]) -> Tensor:
        told = [candidates[place] for place in prefix]
        found = scorer.score(query, told, [candidates[place] for place in places])
        row = torch.full((len(candidates),), torch.nan)
        row[list(places)] = found.logprob.float()
        states.append(prefix)
        sums.append(row)
        return worth(found.logprob.float() / start.num_tokens, objective)

    found = beam_search(extend, len(candidates), shots, beam)
    length = min(shots, len(candidates))
    if len(found.beams[0].picks) < length or not start.logprob.isfinite().all():
        raise EligoError(
            "the host gives no number (NaN) as the log-probability of the answer; half precision "
            "may be too narrow for it: try --host.dtype float32 (or bfloat16)"
        )
    table = torch.full((len(states), shots), -1, dtype=torch.int32)
    for row, prefix in enumerate(states):
        table[row, : len(prefix)] = torch.tensor(prefix, dtype=torch.int32)
    return Lesson(
        query,
        candidates,
        float(start.logprob[0]) / start.num_tokens,
        start.num_tokens,
        found.beams if candidates else [],
        table,
        torch.stack(sums) if sums else torch.zeros(0, len(candidates)),
    )
