"""LearnedTokenPooling: a smaller index for multi-vector models of sentence-transformers.

SEPS without a text, as documents are pooled before any query: score the tokens, keep the best, fold
them into slots, fold the dropped ones into one extra token. A module for the end of a
`MultiVectorEncoder` (ColBERT, ColPali), or for its `token_pooling=` argument.

Departs from SEPS in how slots are made, because its softmax has a fixed number of slots and blurs
them. If u_i is the probability that token i is the best match of a query's word, folding costs
MaxSim a squared error of about `sum_i u_i |v_i - slot(i)|^2`. Ward's clustering with weights u
minimises that, so the score learns log u, and slots are clusters. They are nested: a larger budget
cuts the same tree lower (and keeps more tokens, the same ones first).

Needs the extra `pooling` (sentence-transformers >= 6).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor, nn

from eligo import ops
from eligo.errors import InputError, MissingExtraError
from eligo.patches.model.functional import unit, wide

try:
    from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling
except ImportError:
    raise MissingExtraError("sentence-transformers >= 6", "pooling") from None

_TEMPERATURE = 0.02  # of the softmax over cosines that assigns words to tokens
_GAP = 0.1  # scale of differences of a word's best cosine
_FACTORS = (1.5, 12.0)  # range of the pool factors in training


class LearnedTokenPooling(BaseTokenPooling):
    """Fold the n tokens of a document into about n / `pool_factor` unit vectors.

        s_i    = w cos(v_i, mean v) + MLP(v_i)                     log u_i
        extra  = unit(sum over dropped i of e^s_i v_i)             lowest weights
        slot_j = unit(sum over i in cluster j of e^s_i v_i)         Ward's clusters, weights e^s

    Symbols: v_i token i of n, unit, width D = `dim`; w a learned number; the MLP is D -> D/4 -> 1.
    Dropped are the tokens of lowest weight that together hold at most `dropped_share` of the sum,
    if they are more than a slot has on average; else there is one more slot and no extra token.
    Every slot keeps at least one token.

    Tensor shapes:
        tokens (n, D)
          | first num_protected_tokens ([CLS]) pass through
        s (n - protected)
          | keep the best            kept (K), dropped (n - protected - K)
          | Ward's tree, cut         cluster of each kept token (K)
          | weighted means, unit
        (protected + count, D),  count = max(1, (n - protected) // pool_factor)

    With equal weights this is `HierarchicalTokenPooling`, which makes as many vectors.

    >>> LearnedTokenPooling(dim=8, pool_factor=4).pool_one(torch.randn(21, 8)).shape
    torch.Size([6, 8])
    """

    config_keys = ["dim", "pool_factor", "num_protected_tokens", "dropped_share", "tasks"]  # noqa: RUF012

    def __init__(
        self,
        dim: int,
        pool_factor: float | int = 2.0,
        *,
        num_protected_tokens: int = 1,
        dropped_share: float = 0.02,
        tasks: str | list[str] | None = None,
    ) -> None:
        super().__init__(tasks=tasks)
        if pool_factor < 1:
            raise InputError(f"pool_factor: got {pool_factor}, expected at least 1, e.g. 4")
        if not 0 <= dropped_share < 1:
            raise InputError(f"dropped_share: got {dropped_share}, expected a share in [0, 1)")
        if num_protected_tokens < 0:
            raise InputError(f"num_protected_tokens: got {num_protected_tokens}, expected >= 0")
        self.dim = dim
        self.pool_factor = float(pool_factor)
        self.num_protected_tokens = num_protected_tokens
        self.dropped_share = dropped_share
        hidden = max(1, dim // 4)
        self.predictor = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, 1))
        self.mean_weight = nn.Parameter(torch.tensor(0.0))

    def num_out(self, num_tokens: int, pool_factor: float | None = None) -> int:
        """Return the number of vectors of a pooled document of `num_tokens` tokens."""
        rest = max(0, num_tokens - self.num_protected_tokens)
        count = max(int(rest // (pool_factor or self.pool_factor)), 1)
        return num_tokens - rest + min(rest, count)

    def score(self, tokens: Float[Tensor, "tokens dim"]) -> Float[Tensor, " tokens"]:
        """Return the logarithm of each unit token's weight, up to a constant."""
        typical = tokens @ unit(tokens.mean(0))
        first = self.predictor[0]
        assert isinstance(first, nn.Linear)
        predicted = wide(self.predictor(tokens.to(first.weight.dtype)).squeeze(-1))
        return self.mean_weight * typical + predicted

    def pool_one(self, embedding: Tensor, **kwargs: Any) -> Tensor:
        """Pool one document: (tokens, dim) -> (fewer, dim)."""
        del kwargs
        if embedding.ndim != 2 or embedding.shape[1] != self.dim:
            raise InputError(
                f"tokens: got shape {tuple(embedding.shape)}, expected (tokens, dim={self.dim})"
            )
        return self.fold(unit(embedding), self.pool_factor).to(embedding.dtype)

    def fold(
        self, tokens: Float[Tensor, "tokens dim"], pool_factor: float
    ) -> Float[Tensor, "pooled dim"]:
        """Pool unit tokens by any factor, with gradients through the weights of the means."""
        head, rest = tokens[: self.num_protected_tokens], tokens[self.num_protected_tokens :]
        count = self.num_out(len(tokens), pool_factor) - len(head)
        if count >= len(rest):
            return tokens
        score = self.score(rest)
        order = ops.top_k(score, len(rest))  # best first
        num_dropped = self._num_dropped(score[order], count)
        kept = order[: len(rest) - num_dropped]
        clusters = torch.zeros(len(rest), dtype=torch.int64, device=rest.device)
        if count > 1:
            has_extra = int(num_dropped > 0)  # cluster 0 is the extra token's
            clusters[kept] = has_extra + self._clusters(rest[kept], score[kept], count - has_extra)
        # Weights are relative to the best of a cluster, so that none underflows.
        best = score.new_full((count,), -torch.inf).scatter_reduce(0, clusters, score, "amax")
        weights = (score - best.detach()[clusters]).exp().unsqueeze(-1)  # (n, 1)
        sums = rest.new_zeros(count, self.dim).index_add(0, clusters, weights * rest)
        return torch.cat([head, unit(sums)])

    def _num_dropped(self, ranked: Float[Tensor, " tokens"], count: int) -> int:
        """Return the number of tokens in the extra token; 0 if it would hold too few."""
        held = ranked.detach().softmax(0).flip(0).cumsum(0)  # by the last, the last two, ...
        dropped = int((held <= self.dropped_share).sum())
        dropped = min(dropped, len(ranked) - (count - 1))  # a slot needs a token
        return dropped if count > 1 and dropped * count > len(ranked) else 0

    @staticmethod
    def _clusters(tokens: Tensor, score: Tensor, count: int) -> Int[Tensor, " tokens"]:
        cosines = (tokens @ tokens.T).detach().double().cpu().numpy()
        weights = (score - score.max()).exp().detach().double().cpu().numpy()
        tree = ward_tree(2 - 2 * cosines, np.maximum(weights, 1e-9))
        return torch.from_numpy(cut_tree(tree, count)).to(tokens.device)

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        """Write config and weights for `load`."""
        super().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> "LearnedTokenPooling":
        """Load a module that `save` wrote."""
        pooling = super().load(model_name_or_path, *args, **kwargs)
        names = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        given = dict(zip(names, args, strict=False)) | kwargs
        where = {name: given[name] for name in names if name in given}
        cls.load_torch_weights(model_name_or_path, model=pooling, **where)
        return pooling


def fit_pooling(
    pooling: LearnedTokenPooling,
    documents: Sequence[Float[Tensor, "_ dim"]],
    queries: Sequence[Float[Tensor, "_ dim"]],
    *,
    steps: int = 300,
    batch_size: int = 16,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> list[float]:
    """Train pooled documents to match queries as whole ones do; return the losses.

    Queries and documents are drawn independently. Two terms: the cross-entropy of softmax(s) with
    u, the share of words whose best match is each token (`softmax(cos / 0.02)` over the tokens),
    and, at a budget drawn in each step, `((max_i <q, v_i> - max_j <q, slot_j>) / 0.1)^2`.
    """
    if not documents or not queries:
        raise InputError(f"got {len(documents)} documents and {len(queries)} queries")
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(pooling.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    low, high = map(math.log, _FACTORS)
    losses = []
    for _ in range(steps):
        document_ids, query_ids = (
            torch.randint(len(each), (batch_size,), generator=draw).tolist()
            for each in (documents, queries)
        )
        words = unit(torch.cat([queries[i] for i in query_ids]))  # (words, dim)
        factor = math.exp(low + (high - low) * float(torch.rand((), generator=draw)))
        terms = [_loss(pooling, unit(documents[i]), words, factor) for i in document_ids]
        loss = torch.stack(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def _loss(pooling: LearnedTokenPooling, tokens: Tensor, words: Tensor, factor: float) -> Tensor:
    """Return the loss of one document (tokens, dim) and all words (words, dim)."""
    rest = tokens[pooling.num_protected_tokens :]
    shares = (rest @ words.T / _TEMPERATURE).softmax(0).mean(1)  # u
    cross_entropy = -(shares * pooling.score(rest).log_softmax(0)).sum()
    gap = (words @ tokens.T).amax(1) - (words @ pooling.fold(tokens, factor).T).amax(1)
    return cross_entropy + (gap / _GAP).square().mean()


class Merge(NamedTuple):
    """Two clusters become one; a cluster is named by one of its points."""

    height: float
    """Increase of the sum of squares."""
    into: int
    other: int


def ward_tree(
    squared: Float64[np.ndarray, "points points"], weights: Float64[np.ndarray, " points"]
) -> list[Merge]:
    """Return all merges of Ward's clustering of weighted points, by rising height.

    Each step merges the two clusters whose union adds least to `sum_i w_i |x_i - mean|^2` (Ward
    1963), found by nearest-neighbour chains (Murtagh 1983). SciPy does not support weights.

    >>> squared = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]])
    >>> ward_tree(squared, np.ones(3))[0]
    Merge(height=0.5, into=1, other=0)
    """
    size = weights.copy()
    cost = squared * (size[:, None] * size / (size[:, None] + size))
    np.fill_diagonal(cost, np.inf)
    merged = np.zeros(len(size), dtype=bool)
    merges, chain = [], []
    for _ in range(len(size) - 1):
        if not chain:
            chain.append(int(np.argmin(merged)))
        while True:
            last = chain[-1]
            near = int(cost[last].argmin())
            if len(chain) > 1 and cost[last, chain[-2]] <= cost[last, near]:
                break  # mutual nearest neighbours
            chain.append(near)
        into, other = chain.pop(), chain.pop()
        height = cost[into, other]
        merges.append(Merge(float(height), into, other))
        # Lance and Williams' update, with weights for sizes.
        row = (size[into] + size) * cost[into] + (size[other] + size) * cost[other] - size * height
        row /= size[into] + size[other] + size
        merged[other] = True
        row[merged] = row[into] = np.inf
        cost[into], cost[:, into] = row, row
        cost[other], cost[:, other] = np.inf, np.inf
        size[into] += size[other]
    return sorted(merges, key=lambda merge: merge.height)  # stable: equal heights as they came


def cut_tree(tree: list[Merge], count: int) -> Int64[np.ndarray, " points"]:
    """Return the cluster, 0 ... count - 1, of each point, numbered by their first point."""
    owner = np.arange(len(tree) + 1)
    for merge in tree[: len(owner) - count]:
        into, other = owner[merge.into], owner[merge.other]
        owner[owner == max(into, other)] = min(into, other)
    return np.unique(owner, return_inverse=True)[1].astype(np.int64)
