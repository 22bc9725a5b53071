"""Query, and embeddings by view (image, text) with the one vector that they make together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError

ONLY = "embedding"  # name of a single, unnamed view
Embeddings = Tensor | np.ndarray | Mapping[str, Tensor | np.ndarray]
"""Vectors of torch or NumPy, or those of each view."""


class EmbeddingViews(dict[str, Tensor]):
    """Views that were checked: reading their values again would load a memory-mapped file."""


def as_views(
    embeddings: Embeddings, where: str, ndim: int, ids: Sequence[str] = ()
) -> EmbeddingViews:
    """Return checked views as tensors: finite, no zero vector; `ids` name the rows in errors."""
    if isinstance(embeddings, EmbeddingViews):
        return embeddings
    given = embeddings if isinstance(embeddings, Mapping) else {ONLY: embeddings}
    if not given:
        raise InputError(f"{where}: got no embeddings, expected at least one view")
    named = EmbeddingViews(
        {
            name: torch.from_numpy(view) if isinstance(view, np.ndarray) else view
            for name, view in given.items()
        }
    )
    for name, view in named.items():
        if not isinstance(view, Tensor) or view.ndim != ndim or not view.is_floating_point():
            got = f"{view.dtype} {tuple(view.shape)}" if isinstance(view, Tensor) else type(view)
            axes = "(items, dim)" if ndim == 2 else "(dim,)"
            raise InputError(
                f"{where}: got {name} {got}, expected a float tensor {axes}, or an array of NumPy"
            )
        norms = torch.linalg.vector_norm(view.detach().float(), dim=-1)
        bad = ~norms.isfinite() | (norms == 0)
        if bad.any():
            first = 0 if ndim == 1 else int(bad.nonzero()[0])
            row = "" if ndim == 1 else f" of row {first}"
            if ids:
                row = f" of {ids[first]!r}, row {first}"
            raise InputError(
                f"{where}: {name}{row} has norm {norms[bad][0].item()}, expected finite numbers "
                "that are not all 0; embed it again, or leave it out"
            )
    return named


def joined(views: Mapping[str, Tensor]) -> Float[Tensor, "*items dim"]:
    """Return the L2-normalised mean of the L2-normalised views, float32.

    >>> joined({"image": torch.tensor([2.0, 0.0]), "text": torch.tensor([0.0, 5.0])})
    tensor([0.7071, 0.7071])
    """
    if len({view.shape for view in views.values()}) > 1:
        shapes = {name: tuple(view.shape) for name, view in views.items()}
        raise InputError(f"views: got shapes {shapes}, expected the same for all")
    units = [F.normalize(view.float(), dim=-1) for view in views.values()]
    mean = torch.stack(units).mean(0)
    # Opposite views cancel out; then the first one is used.
    mean = torch.where(mean.norm(dim=-1, keepdim=True) > 1e-6, mean, units[0])
    return F.normalize(mean, dim=-1)


def check_id(name: object, where: str) -> None:
    """Raise for ids that are not text: 7 and "7" would differ, and a query could get itself."""
    if not isinstance(name, str):
        raise InputError(f"{where}: got id {name!r:.60}, expected text; give str(id)")


@dataclass(frozen=True, eq=False)
class Query:
    """A question to choose examples for."""

    id: str
    embeddings: Embeddings
    """(dim,), or one such tensor for each view."""
    group: str | None = None
    """Examples of this group are never chosen."""
    domain: str | None = None
    """Only examples of this domain are chosen, if the pool has domains."""
    text: str | None = None
    """The text of the question, for BM25."""

    def __post_init__(self) -> None:
        check_id(self.id, "Query")

    @cached_property
    def views(self) -> EmbeddingViews:
        """The embeddings by view."""
        return as_views(self.embeddings, f"Query {self.id!r}", 1)

    @cached_property
    def vector(self) -> Float[Tensor, " dim"]:
        """One unit vector: the views joined."""
        return joined(self.views)
