"""TokenSparse: score every patch against the text, keep the best, fold the rest into one token.

Equations 1-3 of SEPS (arXiv 2511.01390); the open variant is LAPS. Departures, all off with
`compat=True`: the budget is rounded so that 100 patches at ratio 0.07 keep 7 (floating point gives
8), and the decision has a gradient (see `functional`).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo import ops
from eligo.errors import InputError
from eligo.patches.model import functional
from eligo.patches.model.functional import mean_patch, min_max, unit, weighted_softmax, wide


class TokenSparse(nn.Module):
    """Patches that matter to a text: select K of N, best first (arXiv 2511.01390, eq. 1-3).

    Open (`use_paper_version=False`, as LAPS; its `typicality` t is 1):
        s_i = t s_im_i + s_st_i

    Paper:
        (1)  s^p_i  = sigmoid(MLP(v_i))                      the patch by itself
        (2)  s_im_i = <v_i, mean patch>, s_st_i = <v_i, mean word>, s_dt_i = <v_i, mean dense word>
        (3)  s_i    = (1 - 2b) s^p_i + b (mm(s_st)_i + mm(s_dt)_i + 2 mm(s_im)_i)

    Symbols: v_i patch i of N, width C; mm(a) = (a - min a) / (max a - min a + 1e-8) over the
    patches of one image; b = `beta` in [0, 0.5]; the similarities of (2) are cosines that the
    caller computes without gradient. The weights of (3) sum to 1 + 2b, as printed. K = ceil(N *
    `sparse_ratio`), at least 1. Kept patches pass through unchanged; the dropped ones become
        extra = sum over dropped i of softmax(s_dropped)_i v_i

    Tensor shapes:
        tokens (B, N, C)
          | score_predictor: C -> C/4 -> 1, sigmoid     (1)
        prediction (B, N), attention_x, attention_y, attention_y_dense (B, N)
          | weigh and add                               (2), (3)
        score (B, N)
          | stable sort, the K best; ties to the lowest index
        indices (B, K), score_mask (B, N) of 0 and 1
          | gather the kept, softmax over the dropped
        select_tokens (B, K, C), extra_token (B, 1, C)

    >>> sparse = TokenSparse(embed_dim=8, sparse_ratio=0.5)
    >>> kept, extra, mask = sparse(torch.randn(2, 6, 8), torch.rand(2, 6), torch.rand(2, 6))
    >>> kept.shape, extra.shape, mask.sum(1)
    (torch.Size([2, 3, 8]), torch.Size([2, 1, 8]), tensor([3., 3.]))
    """

    def __init__(
        self,
        embed_dim: int = 512,
        sparse_ratio: float = 0.6,
        use_paper_version: bool = False,
        *,
        typicality: float = 1.0,
        compat: bool = False,
    ) -> None:
        super().__init__()
        check_ratio("sparse_ratio", sparse_ratio)
        self.typicality = typicality
        self.embed_dim = embed_dim
        self.sparse_ratio = sparse_ratio
        self.use_paper_version = use_paper_version
        self.compat = compat
        if use_paper_version:
            hidden = embed_dim // 4
            self.score_predictor = nn.Sequential(
                nn.Linear(embed_dim, hidden), nn.GELU(), nn.Linear(hidden, 1), nn.Sigmoid()
            )

    def num_kept(self, num_patches: int) -> int:
        """Return K, the number of kept patches of N."""
        return num_kept(num_patches, self.sparse_ratio, compat=self.compat)

    def predict(
        self, tokens: Float[Tensor, "*batch patches dim"]
    ) -> Float[Tensor, "*batch patches"] | None:
        """Return equation 1: the importance of each patch by itself; None in the open variant."""
        if not self.use_paper_version:
            return None
        first = self.score_predictor[0]
        assert isinstance(first, nn.Linear)
        prediction = self.score_predictor(tokens.to(first.weight.dtype))  # (B, N, C) -> (B, N, 1)
        return wide(prediction.squeeze(-1))  # (B, N)

    def forward(
        self,
        tokens: Float[Tensor, "batch patches dim"],
        attention_x: Float[Tensor, "batch patches"],
        attention_y: Float[Tensor, "batch patches"],
        attention_y_dense: Float[Tensor, "batch patches"] | None = None,
        beta: float = 0.25,
        use_gumbel: bool = False,
        gumbel_tau: float = 1.0,
    ) -> tuple[
        Float[Tensor, "batch kept dim"],
        Float[Tensor, "batch 1 dim"],
        Float[Tensor, "batch patches"],
    ]:
        """Return kept tokens (best first), the extra token, and the 0/1 mask of the decision.

        `attention_x` is s_im, `attention_y` s_st, `attention_y_dense` s_dt (of the dense branch:
        the other way round). `use_gumbel` gives the mask the gradient of a noisy softmax.
        """
        check_beta(beta)
        prediction = self.predict(tokens)  # eq. 1: (B, N, C) -> (B, N)
        # eq. 3: (B, N)
        score = combine(
            prediction, attention_x, attention_y, attention_y_dense, beta, None, self.typicality
        )
        indices = ops.top_k(score, self.num_kept(tokens.shape[1]))  # (B, K), best first
        keep = ops.kept_mask(indices, tokens.shape[1])  # (B, N), K True in each row
        if use_gumbel:
            noise = torch.rand_like(score)  # (B, N)
            live = functional.gumbel(score, keep, noise, gumbel_tau)  # (B, N) of 0 and 1
        elif self.compat:
            live = keep.to(score.dtype)  # (B, N) of 0 and 1, no gradient
        else:
            live = functional.straight_through(score, keep)  # (B, N) of 0 and 1
        weights = weighted_softmax(score, (~keep).to(score.dtype))  # (B, N), 0 where kept
        extra = weights.unsqueeze(1) @ wide(tokens)  # (B, 1, N) @ (B, N, C) -> (B, 1, C)
        kept = ops.gather(tokens, indices)  # (B, N, C), (B, K) -> (B, K, C)
        return kept, extra.to(tokens.dtype), live


def combine(
    prediction: Float[Tensor, "*#batch patches"] | None,
    attention_x: Float[Tensor, "*#batch patches"],
    attention_y: Float[Tensor, "*#batch patches"],
    attention_y_dense: Float[Tensor, "*#batch patches"] | None,
    beta: float,
    mask: Bool[Tensor, "*#batch patches"] | None = None,
    typicality: float = 1.0,
) -> Float[Tensor, "*#batch patches"]:
    """Return equation 3, or `t s_im + s_st` without a prediction (open); batch axes broadcast."""
    if prediction is None:
        return typicality * wide(attention_x) + wide(attention_y)  # (B, N)
    guidance = min_max(wide(attention_y), mask)  # (B, N) in [0, 1]
    if attention_y_dense is not None:
        guidance = guidance + min_max(wide(attention_y_dense), mask)  # (B, N)
    guidance = guidance + 2 * min_max(wide(attention_x), mask)  # (B, N)
    return (1 - 2 * beta) * prediction + beta * guidance  # (B, N)


@torch.no_grad()
def cosine_to_mean(
    patches: Float[Tensor, "images patches dim"],
    mask: Bool[Tensor, "images patches"] | None = None,
) -> Float[Tensor, "images patches"]:
    """Return s_im of equation 2: the cosine of each patch with the mean patch of its image."""
    mean = unit(mean_patch(patches, mask))  # (V, N, C) -> (V, C)
    cosines = unit(patches) @ mean.unsqueeze(-1)  # (V, N, C) @ (V, C, 1) -> (V, N, 1)
    return cosines.squeeze(-1)  # (V, N)


def num_kept(num_patches: int, ratio: float, *, compat: bool = False) -> int:
    """Return `ceil(N ratio)`, at least 1; `compat`: with the error of floating point."""
    exact = num_patches * ratio
    return max(1, math.ceil(exact if compat else exact - 1e-9))


def check_ratio(name: str, ratio: float) -> None:
    """Raise for a share of the patches outside (0, 1]."""
    if not 0 < ratio <= 1:
        raise InputError(f"{name}: got {ratio}, expected a share in (0, 1], e.g. 0.5 for half")


def check_beta(beta: float) -> None:
    """Raise for a beta outside [0, 0.5]: the prediction's weight 1 - 2 beta must be >= 0."""
    if not 0 <= beta <= 0.5:
        raise InputError(f"beta: got {beta}, expected a weight in [0, 0.5], e.g. 0.25")
