"""Does the selection look at what the text speaks of? Known exactly in scenes."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import encode_image_set, encode_pieces, pick
from eligo.patches.model.net import CrossSparseAggrNet
from eligo.patches.model.retrieval_model import RetrievalModel

_ON = 0.25
"""A patch is on an object if at least this share of its pixels is."""
_SCENES = 32  # at a time


@torch.no_grad()
def pointing(model: RetrievalModel, scenes: SceneSet) -> dict[str, float]:
    """How often the best-scored patch of an image is on an object its caption mentions.

    `hit` by the selection's score; `hit_by_text` by s_st alone; `chance` the share of patches that
    are on such an object (or the objects' share of the area, if that is larger); `chance_on_things`
    their share among the patches that are on anything but the room: who only finds things hits as
    often; `kept` the share of the mentioned objects' patches that the selection keeps.
    """
    net = model.net
    assert isinstance(net, CrossSparseAggrNet)
    images = encode_image_set(model, scenes)
    words = encode_pieces(model, scenes.texts(512))
    on_object = mentioned(scenes, model.grid_hw)  # (scenes, captions, patches)
    on_thing = things(scenes, model.grid_hw) >= _ON  # (scenes, patches)
    num_captions = on_object.shape[1]
    sums = torch.zeros(6, dtype=torch.float64, device=model.device)
    for start in range(0, len(scenes), _SCENES):
        rows = torch.arange(start, min(start + _SCENES, len(scenes)), device=model.device)
        texts = model.text_side(
            type(words)(
                *(part[start * num_captions :][: len(rows) * num_captions] for part in words)
            )
        )
        some = pick(images, rows)
        choice = net.match(some, texts, choices=True).sparse
        assert choice is not None
        own = torch.arange(len(rows), device=model.device)[:, None]
        columns = own * num_captions + torch.arange(num_captions, device=model.device)
        score, live = choice.score[own, columns], choice.live[own, columns]  # (rows, captions, N)
        directions = texts.words.directions().view(len(rows), num_captions, -1)
        patches = torch.nn.functional.normalize(some.patches.float(), dim=-1)
        by_text = directions @ patches.transpose(1, 2)
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
    hit, hit_by_text, patches_on, area, of_things, kept = (
        sums / (len(scenes) * num_captions)
    ).tolist()
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
    """Share of each patch's pixels that show an object which the caption speaks of."""
    tiles, deciding = _tiles(scenes, grid_hw), scenes.captions.deciding
    slots = deciding.shape[-1]
    shares = torch.stack([(tiles == slot + 1).float().mean(-1) for slot in range(slots)], -1)
    return deciding.float() @ shares.transpose(1, 2)


def things(scenes: SceneSet, grid_hw: tuple[int, int]) -> Float[Tensor, "scenes patches"]:
    """Share of each patch's pixels that show anything but the room."""
    return (_tiles(scenes, grid_hw) > 0).float().mean(-1)


def _tiles(scenes: SceneSet, grid_hw: tuple[int, int]) -> UInt8[Tensor, "scenes patches pixels"]:
    """What every pixel of every patch shows: 0 the room, i + 1 the thing in slot i."""
    rows, columns = grid_hw
    tiles = scenes.rendered.instances.unflatten(2, (columns, -1)).unflatten(1, (rows, -1))
    return tiles.transpose(2, 3).flatten(3).flatten(1, 2)
