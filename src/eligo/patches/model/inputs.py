"""Inputs of the matching network: images with their patches, texts with their words.

The caller's tensors are checked here, once; kernels only get `Images` and `Texts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.errors import InputError
from eligo.ops._checks import values_are_free
from eligo.patches.model.functional import unit, wide

Lengths = Int[Tensor, " texts"] | Bool[Tensor, "texts words"] | Sequence[int]


@dataclass(frozen=True)
class Words:
    """Raw word vectors of several texts and which of them are real."""

    vectors: Float[Tensor, "texts words dim"]
    mask: Bool[Tensor, "texts words"]

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "Words":
        """Some of the texts."""
        return Words(self.vectors[rows], self.mask[rows])

    def of(self, text: int) -> Float[Tensor, "words dim"]:
        """Return the real words of one text."""
        return self.vectors[text][self.mask[text]]

    @property
    def lengths(self) -> Int[Tensor, " texts"]:
        """Number of words of each text."""
        return self.mask.sum(1)

    def directions(self) -> Float[Tensor, "texts dim"]:
        """Return `unit(mean of raw valid words)` of each text, without gradient."""
        with torch.no_grad():
            total = torch.where(self.mask.unsqueeze(-1), wide(self.vectors), 0.0).sum(1)
            return unit(total / self.lengths.unsqueeze(-1))

    def packed(self) -> "Words":
        """Move real words to the front, and replace padding by each text's first word.

        A repeated word changes no maximum over words, so kernels mask only means and top-k.
        """
        first = ops.align_left(self.mask)  # (texts, words), -1 after the real ones
        indices = torch.where(first < 0, first[:, :1], first)
        return Words(ops.gather(self.vectors, indices), first >= 0)


@dataclass(frozen=True)
class Images:
    """Raw patches of several images, and the direction of each image's dense text."""

    patches: Float[Tensor, "images patches dim"]
    cls: Float[Tensor, "images dim"] | None = None
    mask: Bool[Tensor, "images patches"] | None = None
    """Which patches are real; None: all of them."""
    dense: Float[Tensor, "images dim"] | None = None
    """`unit(mean of raw valid dense words)` of each image."""

    def __getitem__(self, rows: slice | Int[Tensor, " rows"]) -> "Images":
        """Return a subset of the images."""
        parts = (self.patches, self.cls, self.mask, self.dense)
        return Images(*(None if part is None else part[rows] for part in parts))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Texts:
    """Words of the queries; with `compat` also each query's dense words."""

    words: Words
    dense: Words | None = None

    def __getitem__(self, rows: slice) -> "Texts":
        """Some of the texts."""
        return Texts(self.words[rows], None if self.dense is None else self.dense[rows])


def split_tokens(
    tokens: Float[Tensor, "images tokens dim"],
    mask: Bool[Tensor, "images patches"] | None,
    num_prefix: int,
) -> tuple[Float[Tensor, "images patches dim"], Float[Tensor, "images dim"] | None]:
    """Return patches and [CLS] (token 0 of the prefix, if any); registers after it are dropped."""
    num_patches = tokens.shape[1] - num_prefix
    if num_patches < 1:
        raise InputError(
            f"img_embs: got {tokens.shape[1]} tokens, expected more than the {num_prefix} before "
            "the first patch; too few tokens, or set num_prefix_tokens"
        )
    patches = tokens[:, num_prefix:]
    if mask is not None:
        if mask.shape != patches.shape[:2]:
            raise InputError(
                f"patch_mask: got shape {tuple(mask.shape)}, expected {tuple(patches.shape[:2])}: "
                "one value for every patch, none for [CLS] or registers"
            )
        patches = patches.masked_fill(~mask.unsqueeze(-1), 0.0)
    cls = tokens[:, 0] if num_prefix else None
    check_finite("img_embs", patches)
    if cls is not None:
        check_finite("img_embs", cls)
    return patches, cls


def prefix_of_square(num_tokens: int) -> int:
    """Return 1 for a [CLS] unless the tokens form a square: the published network's rule."""
    return 0 if isqrt(num_tokens) ** 2 == num_tokens else 1


def read_words(
    name: str, vectors: Float[Tensor, "texts words dim"], lengths: Lengths | None, width: int
) -> Words:
    """Check word vectors and add their mask; `lengths` are integers or the mask itself."""
    if vectors.shape[-1] != width:
        raise InputError(
            f"{name}_embs: got vectors {vectors.shape[-1]} wide, expected embed_size={width}"
        )
    if lengths is None:
        raise InputError(f"{name}_lens: got None, expected the lengths (or mask) of {name}_embs")
    given = torch.as_tensor(lengths, device=vectors.device)
    num_texts, num_words = vectors.shape[:2]
    if not num_texts:
        raise InputError(f"{name}_embs: got no texts, expected at least one")
    shape = (num_texts, num_words) if given.dtype == torch.bool else (num_texts,)
    if tuple(given.shape) != shape:
        raise InputError(
            f"{name}_lens: got shape {tuple(given.shape)} for {num_texts} texts of {num_words} "
            f"words, expected {(num_texts,)} lengths or a boolean mask {(num_texts, num_words)}"
        )
    if given.dtype == torch.bool:
        mask = given
    else:
        if int(given.max()) > num_words:
            raise InputError(
                f"{name}_lens: got a length of {int(given.max())}, expected at most the "
                f"{num_words} words of {name}_embs"
            )
        mask = torch.arange(num_words, device=given.device) < given.unsqueeze(1)
    empty = (~mask.any(1)).nonzero().flatten().tolist()
    if empty:
        what = "dense caption" if name == "long_cap" else "text"
        raise InputError(
            f"{name}_lens: {what} {empty[0]} is empty; expected at least one word each; leave such "
            "rows out, or give them words"
        )
    vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0)
    check_finite(f"{name}_embs", vectors)
    return Words(vectors, mask)


def check_finite(name: str, values: Tensor) -> None:
    """Raise for NaN and infinity, where reading a value needs no device sync."""
    # A finite sum has finite terms, in one pass; a sum may overflow, so check each value then.
    if not values_are_free(values) or bool(wide(values.detach()).sum().isfinite()):
        return
    if not bool(values.isfinite().all()):
        where = (~values.isfinite()).nonzero()[0].tolist()
        raise InputError(f"{name}: got {values[tuple(where)]} at {where}, expected finite numbers")
