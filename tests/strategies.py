"""Random ragged inputs for the property tests: any batch shape, ties, empty and all-masked rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jaxtyping
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# The same examples on every run, so that failures are reproducible.
quick = settings(max_examples=150, deadline=None, derandomize=True)


class Ragged(NamedTuple):
    scores: Tensor
    mask: Tensor
    generator: torch.Generator

    def randn(self, *features: int) -> Tensor:
        return torch.randn(*self.scores.shape, *features, generator=self.generator)


@st.composite
def ragged(draw: st.DrawFn, *, min_candidates: int = 0, batch: tuple[int, ...] | None = None):
    """Scores `*batch candidates` (half of the time full of ties) and a mask."""
    if batch is None:
        batch = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    num_candidates = draw(st.integers(min_candidates, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    shape = (*batch, num_candidates)
    if draw(st.booleans()):
        scores = torch.randint(-2, 3, shape, generator=generator).float()
    else:
        scores = torch.randn(shape, generator=generator)
    share = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    mask = torch.rand(shape, generator=generator) < share
    return Ragged(scores, mask, generator)


def rows(tensor: Tensor, keep: int = 1) -> list:
    """All batch axes flattened: a list of rows, each with the last `keep` axes."""
    batch = tensor.ndim - keep
    return list(tensor.reshape(math.prod(tensor.shape[:batch]), *tensor.shape[batch:]))


@contextmanager
def production() -> Iterator[None]:
    """Without annotation checks, as in production: our own errors and torch.compile are tested."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
