"""Best-fixed, one list for each lexicon, by greedy search on other queries of it. Sections 2, 4.

What `BestFixed.fit` does with a utility, for all lexicons at once.
"""

import torch
from torch import Tensor

from eligo.shots.baselines import BestFixed
from eligo.shots.learner.scoring import LearnerScorer


def fit_fixed(scorer: LearnerScorer, queries: Tensor, length: int) -> BestFixed:
    """The list of each lexicon that helps these queries (rows of the world's) most on average."""
    pool, asked = scorer.world.pool, scorer.world.queries
    assert pool.domains is not None
    assert asked.domains is not None
    domains = list(dict.fromkeys(asked.domains[row] for row in queries.tolist()))
    members = torch.tensor([[d == own for own in pool.domains] for d in domains])
    rows = members.nonzero()[:, 1].view(len(domains), -1)  # examples of each lexicon
    own = torch.tensor([domains.index(asked.domains[row]) for row in queries.tolist()])
    prefix, first = torch.zeros(len(domains), 0, dtype=torch.int64), torch.empty(0)
    for _ in range(length):
        longer = torch.cat(
            [prefix[:, None].expand(-1, rows.shape[1], -1), rows[..., None]], -1
        )  # (lexicons, examples, shots)
        picks = longer[own]  # (queries, examples, shots)
        found = scorer.answers(
            queries.repeat_interleave(rows.shape[1]), picks.flatten(0, 1)
        ).logprob.view(len(queries), -1)
        total = torch.zeros(len(domains), rows.shape[1]).index_add_(0, own, found)
        first = first if len(first) else total
        taken = (rows[..., None] == prefix[:, None]).any(-1)
        best = total.masked_fill(taken, -torch.inf).argmax(1, keepdim=True)
        prefix = torch.cat([prefix, rows.gather(1, best)], 1)
    rest = rows.gather(1, first.argsort(dim=1, descending=True, stable=True))
    orders = {
        domain: list(dict.fromkeys(pool.names(torch.cat([prefix[place], rest[place]]))))
        for place, domain in enumerate(domains)
    }
    return BestFixed.of(orders, pool)
