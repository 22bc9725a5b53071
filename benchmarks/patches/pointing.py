"""Pointing game: is the best-scored patch on an object that the text mentions?"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import encode_image_set, encode_pieces
from eligo.patches.model.functional import unit
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures

_ON = 0.25  # a patch is on an object if at least this share of its pixels is
_SCENES = 32  # at a time


@torch.no_grad()
def pointing(model: RetrievalModel, scenes: SceneSet) -> dict[str, float]:
    """Return how often the best-scored patch of an image is on an object that its caption mentions.

    `hit` by the selection's score; `hit_by_text` by s_st alone; `chance` the share of patches that
    are on such an object (or the objects' share of the area, if that is larger); `chance_on_things`
    their share among the patches on any object, the rate of a selection that only finds objects;
    `kept` the share of the mentioned objects' patches that the selection keeps.
    """
    net = model.selecting_net()
    images = encode_image_set(model, scenes)
    words = encode_pieces(model, scenes.texts(512))
    on_object = mentioned(scenes, model.grid_hw)  # (scenes, captions, patches)
    on_thing = things(scenes, model.grid_hw) >= _ON  # (scenes, patches)
    num_captions = on_object.shape[1]
    sums = torch.zeros(6, dtype=torch.float64, device=model.device)
    for start in range(0, len(scenes), _SCENES):
        rows = torch.arange(start, min(start + _SCENES, len(scenes)), device=model.device)
        own_texts = slice(start * num_captions, (start + len(rows)) * num_captions)
        texts = model.text_side(TextFeatures(words.words[own_texts], words.mask[own_texts]))
        chunk = images[rows]
        decision = net.match(chunk, texts, decisions=True).sparse
        assert decision is not None
        own = torch.arange(len(rows), device=model.device)[:, None]
        columns = own * num_captions + torch.arange(num_captions, device=model.device)
        score, live = (part[own, columns] for part in decision)  # (rows, captions, N)
        directions = texts.words.directions().view(len(rows), num_captions, -1)
        by_text = directions @ unit(chunk.patches.float()).transpose(1, 2)
        share = on_object[rows]
        on = (share >= _ON).double()
        sums += torch.stack(
            [
                on.gather(2, score.argmax(2, keepdim=True)).sum(),
                on.gather(2, by_text.argmax(2, keepdim=True)).sum(),
                on.mean(2).sum(),
                share.double().mean(2).sum(),
                (on.sum(2) / on_thing[rows].sum(1, keepdim=True).clamp_min(1)).sum(),
                ((on * (live > 0.5)).sum(2) / on.sum(2).clamp_min(1)).sum(),
            ]
        )
    means = (sums / (len(scenes) * num_captions)).tolist()
    hit, hit_by_text, patches_on, area, of_things, kept = means
    return {
        "hit": hit,
        "hit_by_text": hit_by_text,
        "chance": max(patches_on, area),
        "chance_on_things": of_things,
        "kept": kept,
    }


def mentioned(
    scenes: SceneSet, grid_hw: tuple[int, int]
) -> Float[Tensor, "scenes captions patches"]:
    """Return the share of each patch's pixels that show an object which the caption mentions."""
    tiles, deciding = _tiles(scenes, grid_hw), scenes.captions.deciding
    slots = deciding.shape[-1]
    shares = torch.stack([(tiles == slot + 1).float().mean(-1) for slot in range(slots)], -1)
    return deciding.float() @ shares.transpose(1, 2)


def things(scenes: SceneSet, grid_hw: tuple[int, int]) -> Float[Tensor, "scenes patches"]:
    """Return the share of each patch's pixels that show any object."""
    return (_tiles(scenes, grid_hw) > 0).float().mean(-1)


def _tiles(scenes: SceneSet, grid_hw: tuple[int, int]) -> UInt8[Tensor, "scenes patches pixels"]:
    """Return the object of every pixel of every patch: 0 background, i + 1 the object in slot i."""
    rows, columns = grid_hw
    tiles = scenes.rendered.instances.unflatten(2, (columns, -1)).unflatten(1, (rows, -1))
    return tiles.transpose(2, 3).flatten(3).flatten(1, 2)
