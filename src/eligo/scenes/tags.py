"""Tags: words that come with an image and describe its content.

Plain scenes have class names (of twins, the one that applies); binding scenes have phrases that
assign each colour and texture to a nonce class, new in every image: "red striped dax".
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes import draws, words
from eligo.scenes.graph import DECOY, SceneGraph, draw_scenes
from eligo.scenes.painter import label_names, slot_labels
from eligo.scenes.phrases import WORD_ID, compact, to_text
from eligo.scenes.words import COLOUR, TEXTURE

Source = Literal["own", "shuffled", "missing"]
"""Whose tags: the image's own, those of another image of the split, or none."""

_CODES = len(words.COLOURS) * len(words.TEXTURES)
_FINE = 1 << 20  # resolution of a probability


@dataclass(frozen=True)
class Tags:
    """Tags of a batch of scenes, -1 padded."""

    labels: Int64[Tensor, "scenes tags"]
    """The class that each tag names (`label_names`)."""
    words: Int64[Tensor, "scenes tags length"]
    """Word ids of each tag."""

    @property
    def mask(self) -> Bool[Tensor, "scenes tags"]:
        """Which tags are there."""
        return self.labels >= 0

    def text(self, scene: int) -> list[str]:
        """Return the tags of a scene as text."""
        return [to_text(row) for row in self.words[scene].tolist() if row[0] >= 0]


def swap_twins(graph: SceneGraph) -> SceneGraph:
    """Return the same images with the other name of every twin, in tags and labels."""
    return replace(graph, twin=~graph.twin)


def _whose(graph: SceneGraph, source: Source) -> SceneGraph:
    """Return the scenes whose tags are used; `shuffled` depends on the scene, not on its batch."""
    if source != "shuffled":
        return graph
    other = graph.indices + 1 + draws.integer(graph.keys, "another image", 1 << 16)
    return draw_scenes(graph.config, graph.split, other, graph.device)


def present_labels(graph: SceneGraph) -> Bool[Tensor, "scenes labels"]:
    """Return which classes occur in the label map; of things, the solid ones."""
    here = torch.zeros(
        len(graph), len(label_names(graph.config)), dtype=torch.int64, device=graph.device
    )
    here.scatter_add_(1, slot_labels(graph), (graph.exists & graph.solid).long())
    here[:, :2] = 1  # wall and floor
    return here > 0


def class_tags(
    graph: SceneGraph, *, source: Source = "own", precision: float = 1.0, recall: float = 1.0
) -> Tags:
    """Return the names of the classes present, or the output of a tagger of this precision and
    recall (at most all absent classes are named).

    >>> from eligo.scenes import ROOMS, draw_scenes
    >>> class_tags(draw_scenes(ROOMS, "train", range(1))).text(0)[:2]
    ['wall', 'floor']
    """
    if graph.config.binding:
        raise InputError("binding scenes have phrases for tags: use binding_tags")
    if not (0 < precision <= 1 and 0 <= recall <= 1):
        raise InputError(
            f"precision must lie in (0, 1] and recall in [0, 1]; got {precision} and {recall}"
        )
    present = present_labels(_whose(graph, source))
    # Expected number of false names per true one.
    ratio = recall * (1 - precision) / precision
    right = present.sum(-1, keepdim=True)
    wrong = (round(ratio * _FINE) * right) // (present.shape[1] - right).clamp(min=1)
    chance = torch.where(present, round(recall * _FINE), wrong)
    named = draws.integers(graph.keys, "tagger", present.shape[1], _FINE) < chance
    named &= source != "missing"
    ids = torch.tensor([WORD_ID[name] for name in label_names(graph.config)], device=graph.device)
    labels = torch.where(named, torch.arange(len(ids), device=graph.device), -1)
    labels = compact(labels)
    return Tags(labels, torch.where(labels >= 0, ids[labels], -1)[..., None])


def binding_tags(graph: SceneGraph, count: int, *, source: Source = "own") -> Tags:
    """Return `count` phrases "<colour> <texture> <nonce class>", in random order: those of the
    objects present, and absent combinations.

    >>> from eligo.scenes import SceneConfig, draw_scenes
    >>> graph = draw_scenes(SceneConfig(binding=True), "train", range(1))
    >>> len(binding_tags(graph, 16).text(0)[0].split())
    3
    """
    config = graph.config
    if not config.binding:
        raise InputError("plain scenes have class names for tags: use class_tags, or binding=True")
    needed = config.max_objects + config.camouflaged
    if not needed <= count <= _CODES:
        raise InputError(
            f"count must lie between {needed} (a phrase for each object of a scene) and {_CODES} "
            f"(all combinations), got {count}; lower max_objects for fewer phrases"
        )
    whose = _whose(graph, source)
    code = whose.attributes[..., COLOUR] * len(words.TEXTURES) + whose.attributes[..., TEXTURE]
    here = whose.exists & whose.solid & (whose.kind != DECOY)
    present = torch.zeros(len(graph), _CODES, dtype=torch.int64, device=graph.device)
    present.scatter_add_(1, code, here.long())
    shuffled = draws.permutations(graph.keys, "distractors", _CODES)
    absent = (present.gather(1, shuffled) == 0).long()
    chosen = shuffled.gather(1, absent.argsort(dim=1, stable=True)[:, :count])
    chosen = chosen.gather(1, draws.permutations(graph.keys, "phrases", count))  # (scenes, tags)
    labels = 2 + whose.binding.gather(1, chosen)
    parts = (
        (words.COLOURS, chosen // len(words.TEXTURES)),
        (words.TEXTURES, chosen % len(words.TEXTURES)),
        (label_names(config), labels),
    )
    ids = torch.stack(
        [
            torch.tensor([WORD_ID[name] for name in names], device=graph.device)[index]
            for names, index in parts
        ],
        -1,
    )
    if source == "missing":
        labels, ids = torch.full_like(labels, -1), torch.full_like(ids, -1)
    return Tags(labels, ids)
