"""Exponential moving average of the weights: evaluated and published instead of the raw ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eligo.train.groups import named_parameters


class WeightAverage:
    """Averages of all trained parameters; buffers stay as they are."""

    def __init__(self, modules: Mapping[str, nn.Module], decay: float) -> None:
        self.decay = decay
        self.parameters = named_parameters(modules)
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the current weights; the early average forgets faster."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = list(self.averages.values())
        weights: list[Tensor] = list(self.parameters.values())
        torch._foreach_lerp_(averages, weights, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The modules hold the averages inside, the raw weights outside."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            raw = parameter.data
            parameter.data = self.averages[name]
            self.averages[name] = raw
