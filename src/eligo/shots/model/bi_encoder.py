"""V1, V2 and V3: two towers, one cosine (published pointer-selector designs, docs/sources.md).

A published V2 has 0.59 M parameters, which is hidden_dim 256; its tables say 128.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eligo import ops
from eligo.nn import CrossAttention
from eligo.shots.config import (
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
)
from eligo.shots.model import losses
from eligo.shots.model.pointer import EncodedInputs, PointerSelector


class Gate(nn.Module):
    """`q + tanh(W [q; c] + b) * c`, starting at zero: at first a pick changes nothing."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * dim, dim)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, query: Float[Tensor, "batch dim"], pick: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the query after the pick."""
        return query + torch.tanh(self.linear(torch.cat([query, pick], -1))) * pick


class Gru(nn.Module):
    """`q = GRUCell(c, q)`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(dim, dim)

    def forward(
        self, query: Float[Tensor, "batch dim"], pick: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch dim"]:
        """Return the query after the pick."""
        return self.cell(pick, query)


class CandidateAttention(nn.Module):
    """`q = LayerNorm(q + CrossAttention(q, candidates))`."""

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
        """Return the query after attention."""
        return self.norm(query + self.attention(query.unsqueeze(1), candidates, mask).squeeze(1))


class _BiEncoder(PointerSelector):
    def __init__(
        self,
        config: PointerSelectorV1Config | PointerSelectorV2Config | PointerSelectorV3Config,
        attention: PointerSelectorV2Config | None,
    ) -> None:
        super().__init__(config)
        self.look = None if attention is None else CandidateAttention(attention)
        state = {"none": None, "gate": Gate, "gru": Gru}[config.state]
        self.state = None if state is None else state(config.hidden_dim)

    @property
    def is_static(self) -> bool:
        """Whether scores do not depend on earlier picks."""
        return self.state is None

    def _attend(self, query: Tensor, candidates: Tensor, mask: Tensor | None) -> Tensor:
        return query if self.look is None else self.look(query, candidates, mask)

    def _update(self, inputs: EncodedInputs, picks: Tensor, before: Tensor | None) -> Tensor:
        if before is None:
            return inputs.query
        if self.state is None:
            return before
        pick = picks[:, -1:]
        updated = self.state(before, ops.gather(inputs.candidates, pick).squeeze(1))
        return torch.where(pick < 0, before, updated)  # an ignored step changes nothing


class PointerSelectorV1(_BiEncoder):
    """A bi-encoder. With `state="none"` its ranking is fixed before the first pick.

    >>> model = PointerSelectorV1()
    >>> sum(p.numel() for p in model.parameters())
    131072
    """

    config: PointerSelectorV1Config

    def __init__(self, config: PointerSelectorV1Config | None = None) -> None:
        super().__init__(config or PointerSelectorV1Config(), attention=None)


class PointerSelectorV2(_BiEncoder):
    """V1 whose query first attends to the candidates, once.

    >>> model = PointerSelectorV2()
    >>> sum(p.numel() for p in model.parameters())
    197376
    """

    config: PointerSelectorV2Config

    def __init__(self, config: PointerSelectorV2Config | None = None) -> None:
        config = config or PointerSelectorV2Config()
        super().__init__(config, attention=config)


class PointerSelectorV3(_BiEncoder):
    """V1 (or V2) with the loss `CE + weight * ranking`, if the teacher's scores are given.

    >>> model = PointerSelectorV3()
    >>> sum(p.numel() for p in model.parameters())
    131072
    """

    config: PointerSelectorV3Config

    def __init__(self, config: PointerSelectorV3Config | None = None) -> None:
        config = config or PointerSelectorV3Config()
        super().__init__(config, attention=config.v2())

    def _ranking(self, steps: losses.Steps) -> losses.StepLoss:
        config = self.config
        match config.ranking_loss_type, config.ranking_form:
            case "regression", _:
                return losses.regression(steps)
            case "listwise", "documented":
                return losses.listwise_documented(steps)
            case "listwise", _:
                return losses.listwise_corrected(steps, config.target_temperature)
            case _, "documented":
                return losses.pairwise_documented(steps, config.margin)
            case _:
                return losses.pairwise_corrected(steps, config.margin)
