"""SimilarityScale: similarity logits with a fixed or learned temperature.

It differs from the semantic-alignment attention design (docs/sources.md), whose formulas
`legacy=True` keeps for old checkpoints, in two points. Cosine logits are not divided by sqrt(d),
which would limit them to scale / sqrt(d) and make attention nearly uniform. The learned logarithm
is not clamped in the forward pass (at that design's start, ln 14.29 = 2.66 > 2, the clamp has
gradient 0 and the scale never changes) but put back into its bounds after the optimiser's step.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.nn.contexts import without_autocast

_NORM_EPS = 1e-6  # dividing by a smaller norm would only give huge gradients
_LEGACY_LOG_LIMIT = 2.0


class SimilarityScale(nn.Module):
    """Logits of queries and keys, in float32.

    cosine: `scale * cos(q, k)`; dot: `scale * <q, k> / sqrt(d)`. So a cosine logit is at most
    `scale`. The module stores `log_scale = ln(scale)`: a parameter if `learnable`, else a buffer.
    The training loop calls `project_()` after each optimiser step.

    legacy: `e^l <q, k> / sqrt(d)` for both (cosine normalises q and k and still divides), and
    `l` clamped to +-2 in the forward pass if learnable.

    >>> scale = SimilarityScale("cosine", learnable=True, init=14.285714)
    >>> scale(torch.eye(2), torch.eye(2)).diagonal().allclose(torch.tensor(14.285714))
    True
    """

    no_weight_decay = ("log_scale",)

    log_scale: Tensor

    def __init__(
        self,
        similarity: Literal["cosine", "dot"],
        *,
        learnable: bool = False,
        init: float = 1.0,
        bounds: tuple[float, float] = (0.01, 100.0),
        legacy: bool = False,
    ) -> None:
        super().__init__()
        if similarity not in ("cosine", "dot"):
            raise InputError(f"similarity: got {similarity!r}, expected 'cosine' or 'dot'")
        if not 0 < bounds[0] < bounds[1] < math.inf:
            raise InputError(f"bounds: got {bounds}, expected 0 < low < high, e.g. (0.01, 100.0)")
        if not 0 < init < math.inf:
            raise InputError(
                f"init: got {init}, expected the multiplier itself, > 0 (not its logarithm); "
                "1 / temperature for a temperature"
            )
        if learnable and not legacy and not bounds[0] <= init <= bounds[1]:
            raise InputError(
                f"init: got {init}, expected a value within the bounds {bounds} of a learnable "
                "scale; change the value or the bounds"
            )
        self.similarity = similarity
        self.learnable = learnable
        self.bounds = bounds
        self.legacy = legacy
        log_scale = torch.tensor(math.log(init))
        if learnable:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    @property
    def scale(self) -> Float[Tensor, ""]:
        """The multiplier, float32, with gradient if learnable."""
        log_scale = self.log_scale.float()
        if self.legacy and self.learnable:
            log_scale = log_scale.clamp(-_LEGACY_LOG_LIMIT, _LEGACY_LOG_LIMIT)
        return log_scale.exp()

    def scaled(
        self, query: Float[Tensor, "*#batch queries dim"], key: Float[Tensor, "*#batch keys dim"]
    ) -> tuple[Float[Tensor, "*#batch queries dim"], Float[Tensor, "*#batch keys dim"]]:
        """Float32 queries and keys whose plain dot products are the logits, for SDPA."""
        query, key = query.float(), key.float()
        factor = self.scale
        if self.similarity == "cosine":
            query = F.normalize(query, dim=-1, eps=_NORM_EPS)
            key = F.normalize(key, dim=-1, eps=_NORM_EPS)
        if self.similarity == "dot" or self.legacy:
            factor = factor / math.sqrt(query.shape[-1])
        return query * factor, key

    def forward(
        self, query: Float[Tensor, "*#batch queries dim"], key: Float[Tensor, "*#batch keys dim"]
    ) -> Float[Tensor, "*#batch queries keys"]:
        """Logits of every query with every key, float32 even under autocast."""
        with without_autocast(query.device):
            query, key = self.scaled(query, key)
            return query @ key.transpose(-1, -2)

    @torch.no_grad()
    def project_(self) -> None:
        """Put a learnable scale back into its bounds; call after the optimiser's step."""
        if self.learnable and not self.legacy:
            self.log_scale.clamp_(math.log(self.bounds[0]), math.log(self.bounds[1]))

    def extra_repr(self) -> str:
        """The settings, for `print(module)`."""
        learnable = "learnable" if self.learnable else "fixed"
        legacy = ", legacy" if self.legacy else ""
        scale = "unset" if self.log_scale.is_meta else f"{self.scale.item():.4g}"
        return f"{self.similarity}, {learnable}, scale={scale}{legacy}"
