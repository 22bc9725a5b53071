"""How a pick moves the query, so that the next one can depend on it. Section 3, `state`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.shots.model.config import State


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
        """The query after the pick."""
        return query + torch.tanh(self.linear(torch.cat([query, pick], -1))) * pick


class Gru(nn.Module):
    """`q = GRUCell(c, q)`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(dim, dim)

    def forward(
        self, query: Float[Tensor, "batch dim"], pick: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch dim"]:
        """The query after the pick."""
        return self.cell(pick, query)


def build_state(kind: State, dim: int) -> nn.Module | None:
    """The module of that name; None: picks change nothing."""
    return {"none": lambda: None, "gate": lambda: Gate(dim), "gru": lambda: Gru(dim)}[kind]()
