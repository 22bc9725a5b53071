"""Input and output of every kernel: the network's modules with one call's settings, and scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo import ops
from eligo.patches.model import functional
from eligo.patches.model.aggregation import DualTokenAggregation, TokenAggregation
from eligo.patches.model.hrpa import HRPA
from eligo.patches.model.token_sparse import TokenSparse
from eligo.selection import Selection


class PatchDecision(NamedTuple):
    """Scores that ranked the patches, and the decision D (0 or 1, perhaps with a gradient)."""

    score: Float[Tensor, "*pairs patches"]
    live: Float[Tensor, "*pairs patches"]

    def selection(self, mask: Bool[Tensor, "images patches"] | None) -> Selection:
        """Return the kept patches, best first."""
        kept = self.live.detach() > 0.5
        real = kept.new_ones(kept.shape) if mask is None else mask.unsqueeze(1).expand(kept.shape)
        width = int(kept.sum(-1).max()) if kept.numel() else 0
        score = self.score.detach().float()
        return Selection(ops.top_k(score, width, kept), score, real.contiguous())

    def share(self, mask: Bool[Tensor, "*#pairs patches"] | None) -> Float[Tensor, "*pairs"]:
        """Return the mean of D over the real patches."""
        if mask is None:
            return self.live.mean(-1)
        return self.live.sum(-1) / mask.sum(-1).clamp_min(1)


class Matches(NamedTuple):
    """Result of a kernel for all pairs; the decisions only on request."""

    scores: Float[Tensor, "images texts"]
    share: Float[Tensor, "images texts"]
    """Mean of D over the patches (and over both selections), with D's gradient."""
    sparse: PatchDecision | None
    dense: PatchDecision | None


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
        """Whether this is the paper's variant (equations 1-5), not the open one."""
        return self.hrpa.use_paper_version

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all modules."""
        for module in (self.sparse, self.dense, self.aggregation, self.hrpa):
            yield from module.parameters()

    def selects_dense(self, has_dense: bool) -> bool:
        """Whether the dense text makes its own selection, besides guiding the sparse one."""
        return has_dense and (not self.paper or isinstance(self.aggregation, DualTokenAggregation))

    def num_kept(
        self, num_patches: int, mask: Bool[Tensor, "images patches"] | None
    ) -> int | Int[Tensor, " images"]:
        """Return K; one per image where images have different numbers of patches."""
        if mask is None:
            return self.sparse.num_kept(num_patches)
        table = [self.sparse.num_kept(count) for count in range(num_patches + 1)]
        return torch.tensor(table, device=mask.device)[mask.sum(1)]

    def keeps_all(self, num_patches: int, mask: Tensor | None) -> bool:
        """Whether nothing is ever dropped, so that there is no extra token (`compat`: zeros)."""
        certain = mask is None and not self.bernoulli and not self.compat
        return certain and self.sparse.num_kept(num_patches) == num_patches

    def may_drop_nothing(self, num_patches: int, mask: Tensor | None) -> bool:
        """Whether a pair may have no extra token."""
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
        """Return D for all pairs; `guides` is the number of texts (1 or 2) in equation 3."""
        if mask is not None:
            mask = mask.expand(score.shape)
        if self.bernoulli and uniform is not None:
            probability = score / (1 + guides * self.beta)
            return functional.bernoulli(probability, uniform, self.temperature, mask)
        budget = num_kept if isinstance(num_kept, int) else num_kept.expand(score.shape[:-1])
        keep = functional.exact_top_k(score, budget, mask)
        if self.gumbel and uniform is not None:
            return functional.gumbel(score, keep, uniform, self.temperature)
        if self.compat or not score.requires_grad:
            return keep.to(score.dtype)
        return functional.straight_through(score, keep, mask)

    def draw(
        self, like: Float[Tensor, "images patches"], num_texts: int, selects_dense: bool
    ) -> tuple[
        Float[Tensor, "images texts patches"] | None, Float[Tensor, "images texts patches"] | None
    ]:
        """Return uniform noise for the sparse and dense decisions, or None where none is needed.

        Drawn per text, sparse then dense: a seed gives the same noise with every kernel.
        """
        if not (self.gumbel or self.bernoulli):
            return None, None
        draws = [
            [torch.rand_like(like) for _ in range(1 + selects_dense)] for _ in range(num_texts)
        ]
        sparse = torch.stack([draw[0] for draw in draws], 1)
        return sparse, torch.stack([draw[1] for draw in draws], 1) if selects_dense else None
