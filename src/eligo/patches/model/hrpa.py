"""HRPA: highly relevant patch-word alignment, the score of one image and one text.

Equation 5 of SEPS; without its last two terms the score of LAPS. Departures, all off with
`compat=True`: a masked patch is absent everywhere (the published code fills -1000 after the leaky
ReLU, lets that into the top-k, and divides by a count + 1e-8).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.patches.model.functional import wide

_SLOPE = 0.1


class HRPA(nn.Module):
    """Match words and patches both ways: every word with its best patch, and vice versa.

    Equation 5 of arXiv 2511.01390:

        (5)  S = 1/M sum_m r_m + 1/P sum_p c_p + g(top_k(r)) + g(top_k(c))
             r_m = max_p A_mp,   c_p = max_m A_mp,   A = words . patches^T

    Symbols: M words and P patch tokens, unit vectors of width C, so A are cosines; top_k the k
    largest, descending, padded with zeros; g = `relevance_mlp` = Linear(k, 2k),
    GELU, Linear(2k, 1), the same for words and patches, and only in the paper's version. `scan`
    (LAPS): a leaky ReLU of slope 0.1 on A. `bidirectional=False`: no mean of c.

    Tensor shapes:
        patch_features (B, P, C), word_features (B, M, C)
          | words @ patches^T, leaky ReLU if scan
        A (B, M, P)
          | maximum over patches          | maximum over words
        r (B, M)                          c (B, P)
          | mean, top-k -> MLP            | mean, top-k -> MLP
        score (B, 1)

    `patch_mask` (B, P): a masked patch is no word's best match and enters no mean.

    >>> patches, words = torch.eye(4)[None, :3], torch.eye(4)[None, :2]
    >>> HRPA(embed_dim=4)(patches, words)
    tensor([[1.6667]])
    """

    def __init__(
        self,
        embed_dim: int = 512,
        top_k: int = 5,
        use_paper_version: bool = False,
        bidirectional: bool = True,
        scan: bool = True,
        *,
        compat: bool = False,
    ) -> None:
        super().__init__()
        if top_k < 1:
            raise InputError(f"top_k: got {top_k}, expected at least 1, e.g. 5")
        self.embed_dim = embed_dim
        self.top_k = top_k
        self.use_paper_version = use_paper_version
        self.bidirectional = bidirectional
        self.scan = scan
        self.compat = compat
        if use_paper_version:
            self.relevance_mlp = nn.Sequential(
                nn.Linear(top_k, 2 * top_k), nn.GELU(), nn.Linear(2 * top_k, 1)
            )

    def forward(
        self,
        patch_features: Float[Tensor, "batch patches patch_dim"],
        word_features: Float[Tensor, "batch words word_dim"],
        patch_mask: Bool[Tensor, "batch patches"] | Float[Tensor, "batch patches"] | None = None,
    ) -> Float[Tensor, "batch 1"]:
        """Return the score of each pair; inputs are unit vectors, words have no padding."""
        widths = (patch_features.shape[-1], word_features.shape[-1])
        if widths != (self.embed_dim, self.embed_dim):
            raise InputError(
                f"HRPA: got patches {widths[0]} and words {widths[1]} wide, expected both "
                f"embed_dim={self.embed_dim} wide"
            )
        # A: (B, M, C) @ (B, C, P) -> (B, M, P)
        similarity = wide(word_features) @ wide(patch_features).transpose(1, 2)
        if self.scan:
            similarity = F.leaky_relu(similarity, _SLOPE)  # (B, M, P)
        if patch_mask is not None:
            patch_mask = patch_mask > 0  # (B, P)
            absent = -1000.0 if self.compat else -torch.inf
            similarity = torch.where(patch_mask.unsqueeze(1), similarity, absent)  # (B, M, P)
        per_word = similarity.amax(2)  # r: (B, M, P) -> (B, M)
        per_patch = similarity.amax(1)  # c: (B, M, P) -> (B, P)
        if patch_mask is not None and not self.compat:
            # An image without patches scores 0, not -inf.
            per_word = torch.where(patch_mask.any(1, keepdim=True), per_word, 0.0)  # (B, M)
        return self.pool(per_word, per_patch, None, patch_mask).unsqueeze(1)  # (B, 1)

    def squash(self, maxima: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Apply the leaky ReLU to maxima: it is monotone, so the order does not matter."""
        return F.leaky_relu(maxima, _SLOPE) if self.scan else maxima

    def pool(
        self,
        per_word: Float[Tensor, "*batch words"],
        per_patch: Float[Tensor, "*batch patches"],
        word_mask: Bool[Tensor, "*#batch words"] | None = None,
        patch_mask: Bool[Tensor, "*#batch patches"] | None = None,
    ) -> Float[Tensor, "*batch"]:
        """Return means of the maxima plus, in the paper's version, the relevance of the largest."""
        score = self._mean(per_word, word_mask)  # (B, M) -> (B,)
        if self.bidirectional:
            eps = 1e-8 if self.compat else 0.0
            score = score + self._mean(per_patch, patch_mask, eps)  # (B, P) -> (B,)
        if not self.use_paper_version:
            return score  # (B,)
        relevance = self._relevance(per_word, word_mask)  # (B, M) -> (B,)
        # (B, P) -> (B,)
        return score + relevance + self._relevance(per_patch, None if self.compat else patch_mask)

    def _mean(self, values: Tensor, mask: Tensor | None, eps: float = 0.0) -> Tensor:
        if mask is None:
            return values.mean(-1)  # (*batch, items) -> (*batch)
        count = mask.sum(-1).to(values.dtype)  # (*batch)
        return torch.where(mask, values, 0.0).sum(-1) / (count + eps if eps else count.clamp_min(1))

    def _relevance(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return g of the k largest values: (*batch, items) -> (*batch)."""
        if mask is not None:
            values = torch.where(mask, values, -torch.inf)  # (*batch, items)
        largest = values.topk(min(self.top_k, values.shape[-1]), dim=-1).values  # at most k
        if mask is not None:
            largest = torch.where(largest > -torch.inf, largest, 0.0)
        largest = F.pad(largest, (0, self.top_k - largest.shape[-1]))  # (*batch, k)
        first, _, second = self.relevance_mlp
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        hidden = F.gelu(F.linear(largest, wide(first.weight), wide(first.bias)))  # (*batch, 2k)
        return F.linear(hidden, wide(second.weight), wide(second.bias)).squeeze(-1)  # (*batch)
