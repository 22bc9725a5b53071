"""Embeddings by what they are of (image, text), and the one vector that they make together.

`joined`: the L2-normalised mean of the L2-normalised views. Section 2, Pool.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError

ONLY = "embedding"  # the name of the view where there is but one, unnamed
Embeddings = Tensor | Mapping[str, Tensor]


class Views(dict[str, Tensor]):
    """Views that were checked: looking at their values again would read a mapped file whole."""


def as_views(embeddings: Embeddings, where: str, ndim: int) -> Views:
    """Checked views: finite, none of them zero, all for the same items."""
    if isinstance(embeddings, Views):
        return embeddings
    named = Views(embeddings if isinstance(embeddings, Mapping) else {ONLY: embeddings})
    if not named:
        raise InputError(f"{where}: got no embeddings, expected at least one view")
    for name, view in named.items():
        if not isinstance(view, Tensor) or view.ndim != ndim or not view.is_floating_point():
            got = f"{view.dtype} {tuple(view.shape)}" if isinstance(view, Tensor) else type(view)
            axes = "(items, dim)" if ndim == 2 else "(dim,)"
            raise InputError(f"{where}: got {name} {got}, expected a float tensor {axes}")
        norms = torch.linalg.vector_norm(view.detach().float(), dim=-1)
        bad = ~norms.isfinite() | (norms == 0)
        if bad.any():
            row = "" if ndim == 1 else f" of row {int(bad.nonzero()[0])}"
            raise InputError(
                f"{where}: {name}{row} has norm {norms[bad][0].item()}, expected finite numbers "
                "that are not all 0; embed it again, or leave it out"
            )
    return named


def joined(views: Mapping[str, Tensor]) -> Float[Tensor, "*items dim"]:
    """One unit vector for each item, float32.

    >>> joined({"image": torch.tensor([2.0, 0.0]), "text": torch.tensor([0.0, 5.0])})
    tensor([0.7071, 0.7071])
    """
    if len({view.shape for view in views.values()}) > 1:
        shapes = {name: tuple(view.shape) for name, view in views.items()}
        raise InputError(f"views: got shapes {shapes}, expected the same for all")
    units = [F.normalize(view.float(), dim=-1) for view in views.values()]
    mean = torch.stack(units).mean(0)
    # Opposite views cancel out: then the first one counts.
    mean = torch.where(mean.norm(dim=-1, keepdim=True) > 1e-6, mean, units[0])
    return F.normalize(mean, dim=-1)
