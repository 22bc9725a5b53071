"""V1, V2 and V3: two towers, one cosine. Guides V2 and V3.

V2's width of 0.59 M parameters (V3 guide) is hidden_dim 256; both tables say 128.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo import ops
from eligo.nn import CrossAttention
from eligo.shots.model import ranking
from eligo.shots.model.config import (
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
)
from eligo.shots.model.pointer import Entered, PointerSelector
from eligo.shots.model.ranking import StepLoss, Steps
from eligo.shots.model.state import build_state


class LookAtCandidates(nn.Module):
    """`q = LayerNorm(q + CrossAttention(q, candidates))`: the query learns what there is."""

    def __init__(self, config: PointerSelectorV2Config) -> None:
        super().__init__()
        dim = config.hidden_dim
        self.attention = CrossAttention(
            dim, dim, dim, config.num_heads, dropout=config.attn_dropout
        )
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        query: Float[Tensor, "batch dim"],
        candidates: Float[Tensor, "batch candidates dim"],
        mask: Bool[Tensor, "batch candidates"] | None,
    ) -> Float[Tensor, "batch dim"]:
        """The query after one look."""
        seen = self.attention(query.unsqueeze(1), candidates, mask).squeeze(1)
        return self.norm(query + seen)


class _BiEncoder(PointerSelector):
    def __init__(
        self,
        config: PointerSelectorV1Config | PointerSelectorV2Config | PointerSelectorV3Config,
        look: PointerSelectorV2Config | None,
    ) -> None:
        super().__init__(config, config.label_smoothing)
        self.look = None if look is None else LookAtCandidates(look)
        self.state = build_state(config.state, config.hidden_dim)

    @property
    def is_static(self) -> bool:
        """Whether scores stay the same whatever was picked."""
        return self.state is None

    def _look(self, query: Tensor, candidates: Tensor, mask: Tensor | None) -> Tensor:
        return query if self.look is None else self.look(query, candidates, mask)

    def _move(self, entered: Entered, picks: Tensor, before: Tensor | None) -> Tensor:
        if before is None:
            return entered.query
        if self.state is None:
            return before
        pick = picks[:, -1:]
        moved = self.state(before, ops.gather(entered.candidates, pick).squeeze(1))
        return torch.where(pick < 0, before, moved)  # an ignored step moves nothing


class PointerSelectorV1(_BiEncoder):
    """A bi-encoder. With `state="none"` its ranking is fixed before the first pick.

    >>> model = PointerSelectorV1()
    >>> sum(p.numel() for p in model.parameters())
    131072
    """

    config: PointerSelectorV1Config

    def __init__(self, config: PointerSelectorV1Config | None = None) -> None:
        super().__init__(config or PointerSelectorV1Config(), look=None)


class PointerSelectorV2(_BiEncoder):
    """V1 whose query first attends to the candidates, once.

    >>> model = PointerSelectorV2()
    >>> sum(p.numel() for p in model.parameters())
    197376
    """

    config: PointerSelectorV2Config

    def __init__(self, config: PointerSelectorV2Config | None = None) -> None:
        config = config or PointerSelectorV2Config()
        super().__init__(config, look=config)


class PointerSelectorV3(_BiEncoder):
    """V1 (or V2) with loss `CE + weight * ranking`, when the call brings the teacher's scores.

    >>> model = PointerSelectorV3()
    >>> sum(p.numel() for p in model.parameters())
    131072
    """

    config: PointerSelectorV3Config

    def __init__(self, config: PointerSelectorV3Config | None = None) -> None:
        config = config or PointerSelectorV3Config()
        super().__init__(config, look=config.v2())

    def _ranking(self, steps: Steps) -> StepLoss:
        config = self.config
        match config.ranking_loss_type, config.ranking_form:
            case "listwise", "documented":
                return ranking.listwise_documented(steps)
            case "listwise", _:
                return ranking.listwise_corrected(steps, config.target_temperature)
            case _, "documented":
                return ranking.pairwise_documented(steps, config.margin)
            case _:
                return ranking.pairwise_corrected(steps, config.margin)
