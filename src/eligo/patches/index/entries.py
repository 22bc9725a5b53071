"""Entries of an index: the stored tensors of images and texts, and their scores.

Images: everything that `kernels.hoist` computes, so that a search runs no network on them. Vectors
are rounded to the index's precision first and everything else is computed from the rounded ones:
the index scores as the model does on such vectors. The exponents `l - max l` are stored, not their
powers: half precision would flush small weights to zero.

Texts: their raw words, one text after the other.

For stage 1: the slots of images with every patch kept (`fold`), and the direction that FAISS
searches by, the unit mean patch or word; of networks with one vector each, that vector.
"""

from dataclasses import fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eligo.io.reading import reading
from eligo.nn import full_precision
from eligo.patches import kernels
from eligo.patches.index.stage1 import Stage1Query, words_of_rows
from eligo.patches.index.store import IndexFolder
from eligo.patches.kernels.hoist import ImageRows, halved, hoist
from eligo.patches.model.baselines import GlobalCosine
from eligo.patches.model.functional import mean_patch, unit, weighted_softmax, wide
from eligo.patches.model.inputs import Images, Texts, Words, check_finite
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.seps import CrossSparseAggrNet

IndexNet = CrossSparseAggrNet | LateInteraction | GlobalCosine
"""Networks whose inputs an index can hold."""
_SHARDS = "shards of an index: remove it and run the same `eligo patches index` again"
_ROUNDED = ("patches", "cls", "logits", "logits_dense")
_OF_STAGE1 = ("direction", "folded")


def image_directions(images: Images) -> Float[Tensor, "images dim"]:
    """Return `unit(mean patch)` of each image."""
    return unit(mean_patch(images.patches, images.mask))


def fold(rows: ImageRows) -> Float[Tensor, "images slots dim"]:
    """Return unit slots of equation 4 with every patch kept."""
    nets = [rows.logits]
    if rows.logits_dense is not None and rows.s_dt is not None:
        nets.append(rows.logits_dense)
    kept = torch.ones_like(rows.norms) if rows.mask is None else rows.mask.to(rows.norms.dtype)
    weights = [weighted_softmax(wide(logits), kept.unsqueeze(1)) for logits in nets]
    return unit(torch.stack(weights).sum(0) @ wide(rows.patches))


@torch.no_grad()
def image_queries(net: IndexNet, images: Images) -> list[Stage1Query]:
    """Return images as queries of stage 1."""
    if not isinstance(net, CrossSparseAggrNet):
        return [Stage1Query(None, vector) for vector in net.image_vectors(images).cpu()]
    with full_precision():
        folded = fold(hoist(net.parts(), images))
    return [
        Stage1Query(*each)
        for each in zip(folded.cpu(), image_directions(images).cpu(), strict=True)
    ]


@torch.no_grad()
def text_queries(net: IndexNet, texts: Texts) -> list[Stage1Query]:
    """Return texts as queries of stage 1."""
    if not isinstance(net, CrossSparseAggrNet):
        return [Stage1Query(None, vector) for vector in net.text_vectors(texts).cpu()]
    words = texts.words
    return [
        Stage1Query(unit(vectors[mask]).cpu(), direction.cpu())
        for vectors, mask, direction in zip(
            words.vectors, words.mask, words.directions(), strict=True
        )
    ]


@torch.no_grad()
def pack_images(
    net: IndexNet, images: Images, dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """Return images as the tensors of a shard; axis 0 is the image."""
    if isinstance(net, GlobalCosine):
        return {"direction": net.image_vectors(images).to(dtype)}
    patches = images.patches.to(dtype)
    check_finite("patches, in the precision of the index", patches)
    if isinstance(net, LateInteraction):
        stored = {"patches": patches, "direction": net.image_vectors(images).to(dtype)}
        return stored if images.cls is None else stored | {"cls": images.cls.to(dtype)}
    rounded = Images(patches, images.cls, images.mask, images.dense)
    with full_precision():
        rows = hoist(net.parts(), rounded)
    if dtype == torch.float16 and not patches.is_cuda:
        # Scaled as on a GPU, so that the index does not depend on the device.
        scaled, norms = halved(patches, rows.norms)
        rows = replace(rows, patches=scaled, norms=norms)
    stored = {field.name: getattr(rows, field.name) for field in fields(ImageRows)}
    for name in ("logits", "logits_dense"):
        if stored[name] is not None:
            stored[name] = stored[name] - stored[name].amax(-1, keepdim=True)
    stored["direction"] = image_directions(rounded).to(dtype)
    stored["folded"] = fold(rows).to(dtype)
    del stored["num_kept"]  # follows from the mask
    return {
        name: part.to(dtype) if name in _ROUNDED else part
        for name, part in stored.items()
        if part is not None
    }


@torch.no_grad()
def pack_texts(
    net: IndexNet, texts: Texts, dtype: torch.dtype = torch.float16
) -> dict[str, Tensor]:
    """Return texts as the tensors of a shard."""
    pooled = None if isinstance(net, CrossSparseAggrNet) else net.text_vectors(texts)
    if isinstance(net, GlobalCosine):
        assert pooled is not None
        return {"direction": pooled.to(dtype)}
    words = texts.words
    flat = words.vectors[words.mask].to(dtype)
    check_finite("words, in the precision of the index", flat)
    return {
        "words": flat,
        "length": words.lengths.to(torch.int32),
        "direction": (words.directions() if pooled is None else pooled).to(dtype),
    }


def join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the tensors of several packs."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@torch.no_grad()
def score_images(
    net: CrossSparseAggrNet | LateInteraction,
    index: IndexFolder,
    rows: Int[Tensor, " rows"],
    texts: Texts,
) -> Float[Tensor, "rows texts"]:
    """Return exact scores of indexed images (ascending rows) with texts."""
    device = texts.words.vectors.device
    stored = join(index.gather(rows, _pick_images))
    # Patches are multiplied as stored on a GPU, in float32 on a CPU.
    ready = {
        name: part if name == "patches" and device.type == "cuda" else wide(part)
        for name, part in ((name, part.to(device)) for name, part in stored.items())
    }
    if isinstance(net, LateInteraction):
        with reading(index.folder, _SHARDS):
            images = Images(wide(ready["patches"]), ready.get("cls"))
        return net.match(images, texts).scores.float()
    parts = net.parts()
    mask = ready.get("mask")
    if mask is not None:
        ready["num_kept"] = torch.as_tensor(parts.num_kept(mask.shape[1], mask))
    with reading(index.folder, _SHARDS):
        images = ImageRows(**ready)
    with full_precision():
        matches = kernels.match_rows(net.kernel, parts, images, texts)
    return matches.scores.float()


@torch.no_grad()
def score_texts(
    net: CrossSparseAggrNet | LateInteraction,
    index: IndexFolder,
    rows: Int[Tensor, " rows"],
    images: Images,
) -> Float[Tensor, "rows images"]:
    """Return exact scores of indexed texts (ascending rows) with images."""
    picked = index.gather(rows, words_of_rows)
    words = [text for shard in picked for text in shard]
    lengths = torch.tensor([len(text) for text in words])
    vectors = pad_sequence([wide(text) for text in words], batch_first=True)
    mask = torch.arange(vectors.shape[1]) < lengths.unsqueeze(1)
    device = images.patches.device
    texts = Texts(Words(vectors.to(device), mask.to(device)))
    return net.match(images, texts).scores.float().T


def _pick_images(tensors: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: part[rows] for name, part in tensors.items() if name not in _OF_STAGE1}
