"""DPP: greedy MAP of a determinantal point process, with the kernel of OpenICL (Wu et al. 2023).

`L_ij = r_i s_ij r_j`, s and the relevance mapped from cosines to [0, 1], `r = exp(rel / 2a)`.
"""

from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.shots.data.query import Query
from eligo.shots.selector import PoolSelector, ScoredPicks


class DPP(PoolSelector):
    """A relevant and diverse set among the `top` nearest."""

    kind: ClassVar[str] = "dpp"

    def __init__(self, top: int = 100, scale: float = 0.1) -> None:
        if top < 1 or scale <= 0:
            raise InputError(f"DPP: got top {top}, scale {scale}; expected >= 1 and > 0")
        self.top, self.scale = top, scale

    def _choose(self, query: Query, rows: Tensor, shots: int) -> ScoredPicks:
        vectors = self.pool.vectors[rows]
        cosines = vectors @ query.vector
        near = ops.top_k(cosines, min(max(self.top, shots), len(rows)))
        kernel = dpp_kernel(cosines[near], vectors[near], self.scale)
        return ScoredPicks(near[ops.greedy_dpp(kernel, shots)], cosines)

    def _settings(self) -> dict[str, Any]:
        return {"top": self.top, "scale": self.scale}


def dpp_kernel(
    cosines: Float[Tensor, " candidates"], vectors: Float[Tensor, "candidates dim"], scale: float
) -> Float[Tensor, "candidates candidates"]:
    """Return OpenICL's kernel; relevance is shifted to a maximum of 0, which changes no choice."""
    relevance = (cosines + 1) / 2
    weights = ((relevance - relevance.max()) / (2 * scale)).exp() if len(cosines) else relevance
    similarity = (vectors @ vectors.T + 1) / 2
    return weights.unsqueeze(-1) * similarity * weights
