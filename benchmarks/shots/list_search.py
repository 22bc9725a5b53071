"""Searches for lists of examples, for many queries at once.

The same searches as `teach_query` and `BestFixed.fit`, but one step of all queries at a time, so
that a GPU gets tens of thousands of prompts in one call.
"""

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.shots.baselines import BestFixed
from eligo.shots.learner.scoring import LearnerScorer
from eligo.shots.teacher.beam_search import Beam, best_extensions
from eligo.shots.teacher.teacher import TeacherResult


def teach_together(
    scorer: LearnerScorer,
    queries: Int64[Tensor, " queries"],
    candidates: Int64[Tensor, "queries candidates"],
    *,
    shots: int,
    beam: int,
    diversity: float = 0.0,
) -> list[TeacherResult]:
    """Find the best lists of `shots` candidates for each query, by log-probability.

    Queries are rows of the world's queries, candidates rows of its pool; `diversity`: see
    `beam_search`.
    """
    count, size = candidates.shape
    empty = torch.zeros(count, 0, dtype=torch.int64)
    baseline = scorer.answers(queries, empty).logprob
    picks = empty[:, None]  # (queries, beams, shots): positions among the candidates
    values = torch.zeros(count, 1, 0)  # after each pick
    states: list[Tensor] = []
    logprobs: list[Tensor] = []
    for number in range(min(shots, size)):
        free = ~(picks[:, :, None] == torch.arange(size)[:, None]).any(-1)
        query, row, position = free.nonzero(as_tuple=True)
        longer = torch.cat([picks[query, row], position[:, None]], 1)
        answers = scorer.answers(queries[query], candidates[query[:, None], longer])
        table = torch.full(free.shape, torch.nan)
        table[query, row, position] = answers.logprob
        states.append(F.pad(picks, (0, shots - number), value=-1).to(torch.int32))
        logprobs.append(table)
        kept = min(beam, free.shape[1] * (size - number))
        best = best_extensions(picks, table, kept, diversity)
        new = table.flatten(1).gather(1, best)
        picks = torch.cat([ops.gather(picks, best // size), (best % size)[..., None]], -1)
        values = torch.cat([ops.gather(values, best // size), new[..., None]], -1)
    world, state, logprob = scorer.world, torch.cat(states, 1), torch.cat(logprobs, 1)
    return [
        TeacherResult(
            world.queries.query(int(row)),
            world.pool.names(candidates[n]),
            float(baseline[n]),
            1,
            [
                Beam(tuple(beam_picks), steps[-1], tuple(steps))
                for beam_picks, steps in zip(picks[n].tolist(), values[n].tolist(), strict=True)
            ],
            state[n],
            logprob[n],
        )
        for n, row in enumerate(queries)
    ]


def fit_fixed(scorer: LearnerScorer, queries: Int64[Tensor, " queries"], length: int) -> BestFixed:
    """Find the list of each lexicon that helps these queries (rows) most on average, greedily."""
    pool, world_queries = scorer.world.pool, scorer.world.queries
    assert pool.domains is not None
    assert world_queries.domains is not None
    own_domains = [world_queries.domains[row] for row in queries.tolist()]
    domains = list(dict.fromkeys(own_domains))
    members = torch.tensor([[d == own for own in pool.domains] for d in domains])
    rows = members.nonzero()[:, 1].view(len(domains), -1)  # examples of each lexicon
    own = torch.tensor([domains.index(domain) for domain in own_domains])
    prefix, first = torch.zeros(len(domains), 0, dtype=torch.int64), torch.empty(0)
    for _ in range(length):
        longer = torch.cat(
            [prefix[:, None].expand(-1, rows.shape[1], -1), rows[..., None]], -1
        )  # (lexicons, examples, shots)
        picks = longer[own]  # (queries, examples, shots)
        logprob = scorer.answers(
            queries.repeat_interleave(rows.shape[1]), picks.flatten(0, 1)
        ).logprob.view(len(queries), -1)
        total = torch.zeros(len(domains), rows.shape[1]).index_add_(0, own, logprob)
        first = first if len(first) else total
        taken = (rows[..., None] == prefix[:, None]).any(-1)
        best = total.masked_fill(taken, -torch.inf).argmax(1, keepdim=True)
        prefix = torch.cat([prefix, rows.gather(1, best)], 1)
    rest = rows.gather(1, first.argsort(dim=1, descending=True, stable=True))
    orders = {
        domain: list(dict.fromkeys(pool.names(torch.cat([prefix[n], rest[n]]))))
        for n, domain in enumerate(domains)
    }
    return BestFixed.of(orders, pool)
