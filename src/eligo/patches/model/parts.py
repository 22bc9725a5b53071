"""What a kernel needs of the network: its modules, and the rules by which patches stay."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo.patches.model import decision
from eligo.patches.model.aggregation import DualTokenAggregation, TokenAggregation
from eligo.patches.model.hrpa import HRPA
from eligo.patches.model.token_sparse import TokenSparse


@dataclass(frozen=True)
class Parts:
    """The modules of a `CrossSparseAggrNet` and the settings of one call."""

    sparse: TokenSparse
    dense: TokenSparse
    aggregation: TokenAggregation | DualTokenAggregation
    hrpa: HRPA
    beta: float
    temperature: float
    compat: bool
    gumbel: bool
    bernoulli: bool
    """Patches are drawn, not ranked: only with decision="bernoulli" in training."""

    @property
    def paper(self) -> bool:
        """Equations 1-5 rather than the open variant."""
        return self.hrpa.use_paper_version

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of all modules."""
        for module in (self.sparse, self.dense, self.aggregation, self.hrpa):
            yield from module.parameters()

    def selects_dense(self, has_dense: bool) -> bool:
        """Whether the dense text makes a selection of its own, beside guiding the sparse one."""
        return has_dense and (not self.paper or isinstance(self.aggregation, DualTokenAggregation))

    def num_kept(
        self, num_patches: int, mask: Bool[Tensor, "images patches"] | None
    ) -> int | Int[Tensor, " images"]:
        """K, per image where images have different numbers of patches."""
        if mask is None:
            return self.sparse.num_kept(num_patches)
        table = [self.sparse.num_kept(count) for count in range(num_patches + 1)]
        return torch.tensor(table, device=mask.device)[mask.sum(1)]

    def keeps_all(self, num_patches: int, mask: Tensor | None) -> bool:
        """Whether nothing is ever dropped, so that there is no extra token (`compat`: zeros)."""
        certain = mask is None and not self.bernoulli and not self.compat
        return certain and self.sparse.num_kept(num_patches) == num_patches

    def may_drop_nothing(self, num_patches: int, mask: Tensor | None) -> bool:
        """Whether some pair may be without an extra token."""
        varies = not self.compat and (mask is not None or self.bernoulli)
        return varies or self.keeps_all(num_patches, mask)

    def decide(
        self,
        score: Float[Tensor, "*batch patches"],
        num_kept: int | Int[Tensor, "*#batch"],
        mask: Bool[Tensor, "*#batch patches"] | None,
        uniform: Float[Tensor, "*batch patches"] | None,
        guides: int,
    ) -> Float[Tensor, "*batch patches"]:
        """D for all pairs; `guides` is how many texts (1 or 2) entered equation 3."""
        if mask is not None:
            mask = mask.expand(score.shape)
        if self.bernoulli and uniform is not None:
            probability = score / (1 + guides * self.beta)
            return decision.bernoulli(probability, uniform, self.temperature, mask)
        budget = num_kept if isinstance(num_kept, int) else num_kept.expand(score.shape[:-1])
        keep = decision.best(score, budget, mask)
        if self.gumbel and uniform is not None:
            return decision.gumbel(score, keep, uniform, self.temperature)
        if self.compat or not score.requires_grad:
            return keep.to(score.dtype)
        return decision.straight_through(score, keep, mask)

    def draw(
        self, like: Float[Tensor, "images patches"], num_texts: int, selects_dense: bool
    ) -> tuple[
        Float[Tensor, "images texts patches"] | None, Float[Tensor, "images texts patches"] | None
    ]:
        """Uniform noise for the sparse and dense decisions, where there is any.

        In the documented order: per text, sparse then dense, so that a seed gives the same noise
        whatever the kernel.
        """
        if not (self.gumbel or self.bernoulli):
            return None, None
        draws = [
            [torch.rand_like(like) for _ in range(1 + selects_dense)] for _ in range(num_texts)
        ]
        sparse = torch.stack([draw[0] for draw in draws], 1)
        return sparse, torch.stack([draw[1] for draw in draws], 1) if selects_dense else None


def num_slots(num_patches: int, aggr_ratio: float, sparse_ratio: float, compat: bool) -> int:
    """S: how many tokens the kept patches are folded into."""
    exact = num_patches * aggr_ratio * sparse_ratio
    return int(exact) if compat else max(1, math.floor(exact + 1e-9))
