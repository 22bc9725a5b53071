"""The teacher's beam search for many queries at once. Sections 2 and 6.

The same search as `teach_query`, one step of all queries at a time, so that a GPU gets tens of
thousands of prompts in one call.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.shots.data.items import as_query
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.teacher.beam_search import Beam
from eligo.shots.teacher.teacher import Lesson


class _Beams(NamedTuple):
    """Lists of all queries, as positions among their candidates, and what they were worth."""

    picks: Int64[Tensor, "queries beams shots"]
    values: Float[Tensor, "queries beams shots"]
    """After each pick."""

    def extended(self, rows: Tensor, picks: Tensor, values: Tensor) -> "_Beams":
        """Some of the lists, (queries, kept), each with a pick more."""
        return _Beams(
            torch.cat([ops.gather(self.picks, rows), picks[..., None]], -1),
            torch.cat([ops.gather(self.values, rows), values[..., None]], -1),
        )


class _Step(NamedTuple):
    """Lists whose extensions were scored, and the log-probability behind each extension."""

    picks: Int64[Tensor, "queries beams shots"]
    logprob: Float[Tensor, "queries beams candidates"]


def teach_together(
    scorer: LearnerScorer,
    queries: Int64[Tensor, " queries"],
    candidates: Int64[Tensor, "queries candidates"],
    *,
    shots: int,
    beam: int,
) -> list[Lesson]:
    """The best lists of `shots` candidates for each query, by log-probability.

    Queries are rows of the world's, candidates rows of its pool.
    """
    count, size = candidates.shape
    nothing = torch.zeros(count, 0, dtype=torch.int64)
    baseline = scorer.answers(queries, nothing).logprob
    beams = _Beams(nothing[:, None], torch.zeros(count, 1, 0))
    steps: list[_Step] = []
    for number in range(min(shots, size)):
        free = ~(beams.picks[:, :, None] == torch.arange(size)[:, None]).any(-1)
        query, row, place = free.nonzero(as_tuple=True)
        longer = torch.cat([beams.picks[query, row], place[:, None]], 1)
        found = scorer.answers(queries[query], candidates[query[:, None], longer])
        table = torch.full(free.shape, torch.nan)
        table[query, row, place] = found.logprob
        steps.append(_Step(beams.picks, table))
        kept = min(beam, free.shape[1] * (size - number))
        best = ops.top_k(table.flatten(1), kept, free.flatten(1))
        beams = beams.extended(best // size, best % size, table.flatten(1).gather(1, best))
    world = scorer.world
    return [
        Lesson(
            as_query(world.queries, int(row)),
            world.pool.names(candidates[n]),
            float(baseline[n]),
            1,
            [
                Beam(tuple(picks), values[-1], tuple(values))
                for picks, values in zip(
                    beams.picks[n].tolist(), beams.values[n].tolist(), strict=True
                )
            ],
            torch.cat([_padded(step.picks[n], shots) for step in steps]),
            torch.cat([step.logprob[n] for step in steps]),
        )
        for n, row in enumerate(queries)
    ]


def _padded(picks: Int64[Tensor, "beams shots"], shots: int) -> Tensor:
    return F.pad(picks, (0, shots - picks.shape[1]), value=-1).to(torch.int32)
