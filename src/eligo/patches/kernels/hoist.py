"""Values that the fast kernels compute once per image or block of texts; sizes of blocks."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo.ops._checks import values_are_free
from eligo.patches.kernels.interface import Parts
from eligo.patches.model.functional import mean_patch, unit, wide
from eligo.patches.model.inputs import Images, Words

_HALF_NORM = 16.0  # longest patch in half precision: far from overflow when multiplied or squared
_HOIST_IMAGES = 8  # at a time without gradient: intermediates stay in the cache
_ALIKE = 16  # words: shorter texts take a GPU equally long


@dataclass(frozen=True)
class ImageRows:
    """Everything that depends on the images alone."""

    patches: Float[Tensor, "images patches dim"]
    norms: Float[Tensor, "images patches"]
    s_im: Float[Tensor, "images patches"]
    logits: Float[Tensor, "images slots patches"]
    """Equation 4, before the softmax."""
    logits_dense: Float[Tensor, "images slots patches"] | None = None
    prediction: Float[Tensor, "images patches"] | None = None
    """Equation 1."""
    prediction_dense: Float[Tensor, "images patches"] | None = None
    s_dt: Float[Tensor, "images patches"] | None = None
    cls: Float[Tensor, "images dim"] | None = None
    """Unit [CLS] vectors."""
    mask: Bool[Tensor, "images patches"] | None = None
    num_kept: Int[Tensor, " images"] | None = None
    """K, where images have different numbers of patches."""
    factor: Float[Tensor, "images patches columns"] | None = None
    """F, the patches in a narrower basis (`triton_kernels.span`), if that saves time."""

    def split(self, num_images: int) -> Iterator["ImageRows"]:
        """Yield blocks of images; one node in the autograd graph, not one per block."""
        present = {name: part.split(num_images) for name, part in self._present()}
        for block in range(len(present["patches"])):
            yield ImageRows(**{name: parts[block] for name, parts in present.items()})

    def pick(self, ids: Int[Tensor, " picked"]) -> "ImageRows":
        """Return the images with these ids, in any order and number."""
        return ImageRows(**{name: part[ids] for name, part in self._present()})

    def _present(self) -> list[tuple[str, Tensor]]:
        parts = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(name, part) for name, part in parts if part is not None]


@dataclass(frozen=True)
class TextRows:
    """Texts of one block; axis 0 is 1 where all images are matched with the same texts."""

    words: Float[Tensor, "rows texts words dim"]
    """Unit words, padded by repeating the first."""
    mask: Bool[Tensor, "rows texts words"]
    directions: Float[Tensor, "rows texts dim"]
    """Unit mean words, without gradient."""
    cls: Float[Tensor, "images texts words"] | None = None
    """Cosines of the words with the [CLS] of each image."""

    def with_cls_cosines(self, cls: Float[Tensor, "images dim"] | None) -> "TextRows":
        """Add the cosines of all words and all [CLS] vectors, from one product."""
        if cls is None:
            return self
        flat = self.words.flatten(1, 2)  # (1 or images, texts * words, dim)
        if len(flat) == 1:
            cosines = cls @ flat[0].T
        else:
            cosines = (flat @ cls.unsqueeze(-1)).squeeze(-1)
        return replace(self, cls=cosines.unflatten(1, self.words.shape[1:3]))

    def for_images(self, images: slice) -> "TextRows":
        """Return the same texts for a slice of the images."""
        return self if self.cls is None else replace(self, cls=self.cls[images])

    def paired(self) -> "TextRows":
        """(1, pairs, ...) -> (pairs, 1, ...): every image row has its own text."""
        return TextRows(
            *(part.transpose(0, 1) for part in (self.words, self.mask, self.directions))
        )


def hoist(parts: Parts, images: Images) -> ImageRows:
    """Compute everything that does not depend on a text."""
    patches = wide(images.patches)
    with torch.no_grad():
        norms = torch.linalg.vector_norm(patches, dim=-1).clamp_min(1e-12)
        s_im, s_dt = (
            None if part is None else (patches @ part.unsqueeze(-1)).squeeze(-1) / norms
            for part in (unit(mean_patch(patches, images.mask)), images.dense)
        )
        assert s_im is not None
    num_kept = parts.num_kept(patches.shape[1], images.mask)
    if torch.is_grad_enabled():
        chunks = (images.patches,)
    else:
        # On a GPU the chunks only bound the memory.
        chunks = images.patches.split(64 if patches.is_cuda else _HOIST_IMAGES)
    logits = [torch.cat(each) for each in zip(*map(parts.aggregation.logits, chunks), strict=True)]
    predictions = [
        torch.cat([net.predict(chunk) for chunk in chunks]) if parts.paper else None  # pyright: ignore[reportArgumentType,reportCallIssue]
        for net in (parts.sparse, parts.dense)
    ]
    if images.patches.is_cuda and images.patches.dtype != patches.dtype:
        patches, norms = halved(images.patches, norms)
    return ImageRows(
        patches=patches,
        norms=norms,
        s_im=s_im,
        logits=logits[0],
        logits_dense=logits[1] if len(logits) > 1 else None,
        prediction=predictions[0],
        prediction_dense=predictions[1],
        s_dt=s_dt,
        cls=None if images.cls is None else unit(images.cls),
        mask=images.mask,
        num_kept=None if isinstance(num_kept, int) else num_kept,
    )


def halved(patches: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
    """Scale half-precision patches by a power of two per image, which is exact."""
    longest = norms.amax(1, keepdim=True)
    exponent = torch.floor(torch.log2(_HALF_NORM / longest)).clamp_max(15.0)  # of zeros: finite
    scale = torch.exp2(exponent)  # (V, 1)
    return patches * scale.unsqueeze(-1).to(patches.dtype), norms * scale


def text_rows(words: Words, ids: Int[Tensor, " texts"], *, match: bool = True) -> TextRows:
    """Return the texts with these ids, padded to the longest; `match=False`: directions only."""
    chosen = words[ids]
    packed = chosen.packed() if match else chosen
    longest = 0
    if match:
        longest = packed.mask.shape[1] if are_alike(words) else int(packed.lengths.max())
    vectors, mask = packed.vectors[:, :longest], packed.mask[:, :longest]
    return TextRows(unit(vectors).unsqueeze(0), mask.unsqueeze(0), chosen.directions().unsqueeze(0))


def are_alike(words: Words) -> bool:
    """Whether texts are so short that sorting by length is not faster than a device sync."""
    return words.mask.shape[1] <= _ALIKE and not values_are_free(words.mask)


def text_blocks(
    lengths: Int[Tensor, " texts"],
    bytes_per_pair: tuple[int, int],
    budget: int,
    alike: int | None = None,
) -> Iterator[Int[Tensor, " block"]]:
    """Yield ids of texts by rising length, cut by the budget or where padding exceeds a third.

    `bytes_per_pair`: a constant, and bytes for each word. `alike`: a length for all texts, instead
    of `lengths`.
    """
    if alike is None:
        order = lengths.argsort(stable=True)
        sizes = lengths[order].tolist()
    else:
        order = torch.arange(len(lengths), device=lengths.device)
        sizes = [alike] * len(lengths)
    fixed, per_word = bytes_per_pair
    start = 0
    for end, size in enumerate(sizes):
        too_many = (end - start + 1) * (fixed + per_word * size) > budget
        too_ragged = end - start >= 32 and size > 1.5 * sizes[start]
        if end > start and (too_many or too_ragged):
            yield order[start:end]
            start = end
    if sizes:
        yield order[start:]
