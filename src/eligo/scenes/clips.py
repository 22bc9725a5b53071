"""Short clips of generated scenes: objects appear one after the other and move in straight lines.

A clip is a scene drawn several times with other positions, by the same painter. Paths are a quarter
of the picture long and begin where they fit, so that an object at a border can only move inwards.
Questions need several frames: which of two objects appears first, which way an object moves, how
many objects of a shape there are in the end.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.scenes import draws, words
from eligo.scenes.config import SceneConfig, Split
from eligo.scenes.graph import UNIT, SceneGraph, draw_scenes
from eligo.scenes.painter import render
from eligo.scenes.words import COLOUR, SHAPE

Kind = Literal["first", "direction", "count"]
KINDS: tuple[Kind, ...] = ("first", "direction", "count")
DIRECTIONS = ("right", "left", "down", "up")
_STEPS = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])


@dataclass(frozen=True)
class ClipQuestion:
    """A question about a clip."""

    kind: Kind
    question: str
    answer: str
    objects: tuple[int, ...]
    """Slots of the objects that decide the answer."""


@dataclass(frozen=True)
class SceneClip:
    """A clip, its questions and where its objects are."""

    rgb: UInt8[Tensor, "frames 3 height width"]
    instances: UInt8[Tensor, "frames height width"]
    """Slot + 1 of the object that each pixel shows; 0: none."""
    questions: tuple[ClipQuestion, ...]


def draw_clips(
    config: SceneConfig, split: Split, indices: range, *, num_frames: int = 8
) -> list[SceneClip]:
    """Draw the clips with these indices of a split; all objects are there in the last frame.

    >>> clip = draw_clips(SceneConfig(height=64, width=64), "train", range(1))[0]
    >>> clip.rgb.shape
    torch.Size([8, 3, 64, 64])
    """
    check_count("num_frames", num_frames)
    graph = draw_scenes(config, split, indices)
    graph = replace(graph, exists=graph.askable)
    way = draws.integers(graph.keys, "clip direction", config.num_slots, len(DIRECTIONS))
    # Objects appear at different times in the first half, if it has enough frames.
    order = draws.permutations(graph.keys, "clip order", config.num_slots)
    appears = order * num_frames // (2 * config.num_slots)
    step = _STEPS[way] * (UNIT // (4 * num_frames))
    path, margin = step * (num_frames - 1), graph.radius[..., None]
    start = torch.stack([graph.x, graph.y], -1)
    start = start.maximum(margin - path.clamp_max(0)).minimum(UNIT - margin - path.clamp_min(0))
    frames, shown = [], []
    for number in range(num_frames):
        moved = start + step * number
        exists = graph.exists & (appears <= number)
        frame = replace(graph, x=moved[..., 0], y=moved[..., 1], exists=exists)
        rendered = render(frame)
        frames.append(rendered.rgb)
        shown.append(rendered.instances)
    rgb, instances = torch.stack(frames, 1), torch.stack(shown, 1)
    return [
        SceneClip(
            rgb[row],
            instances[row],
            _questions(graph[row : row + 1], way[row], appears[row]),
        )
        for row in range(len(graph))
    ]


def _questions(
    graph: SceneGraph,
    way: Int64[Tensor, " slots"],
    appears: Int64[Tensor, " slots"],
) -> tuple[ClipQuestion, ...]:
    """Return one question of each kind that has a unique answer."""
    exists: Bool[Tensor, " slots"] = graph.exists[0]
    present = exists.nonzero().squeeze(-1).tolist()
    names = {slot: _name(graph, slot) for slot in present}
    unique = [slot for slot in present if list(names.values()).count(names[slot]) == 1]
    found = []
    pairs = [(one, other) for one in unique for other in unique if appears[one] < appears[other]]
    key = graph.keys[:1]

    def pick(stream: str, count: int) -> int:
        return int(draws.integer(key, stream, count)[0])

    if pairs:
        first, second = pairs[pick("clip pair", len(pairs))]
        listed = [names[first], names[second]]
        if pick("clip swap", 2):
            listed.reverse()
        question = f"which appears first, the {listed[0]} or the {listed[1]}?"
        found.append(ClipQuestion("first", question, names[first], (first, second)))
    if unique:
        slot = unique[pick("clip object", len(unique))]
        question = f"which way does the {names[slot]} move?"
        found.append(ClipQuestion("direction", question, DIRECTIONS[int(way[slot])], (slot,)))
    if present:
        shape = int(graph.attributes[0, present[pick("clip shape", len(present))], SHAPE])
        same = [slot for slot in present if int(graph.attributes[0, slot, SHAPE]) == shape]
        question = f"how many {words.PLURALS[shape]} are there in the end?"
        found.append(ClipQuestion("count", question, str(len(same)), tuple(same)))
    return tuple(found)


def _name(graph: SceneGraph, slot: int) -> str:
    colour, shape = (int(graph.attributes[0, slot, part]) for part in (COLOUR, SHAPE))
    return f"{words.name(COLOUR, colour)} {words.name(SHAPE, shape)}"
