"""What modules put out on the way, without asking the model for all of it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def watching(modules: Iterable[nn.Module], last: int | None = None) -> Iterator[list[Tensor]]:
    """Collects what modules put out, in the order of their calls; of a tuple its first part.

    `last`: only so many last columns of (batch, columns, width).
    Lighter than `output_hidden_states`, whose own hooks cut compiled layers into pieces.

    >>> import torch
    >>> layer = nn.Linear(2, 3)
    >>> with watching([layer]) as found:
    ...     _ = layer(torch.zeros(1, 2))
    >>> [tuple(states.shape) for states in found]
    [(1, 3)]
    """
    found: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: Tensor | tuple) -> None:
        states = output[0] if isinstance(output, tuple) else output
        found.append(states if last is None else states[:, -last:])

    hooks = [module.register_forward_hook(keep) for module in modules]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
