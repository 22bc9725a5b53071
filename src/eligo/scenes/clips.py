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


@dataclass(frozen=True)
class ClipGraph:
    """Clips before they are rendered."""

    graph: SceneGraph
    """The objects, all of them, at their places in the first frame."""
    way: Int64[Tensor, "clips slots"]
    """Direction of each object, an index of `DIRECTIONS`."""
    appears: Int64[Tensor, "clips slots"]
    """First frame of each object."""
    num_frames: int

    def __len__(self) -> int:
        return len(self.graph)

    def frames(self) -> SceneGraph:
        """Return every frame as a scene, those of a clip behind each other."""
        number = torch.arange(self.num_frames, device=self.graph.device).repeat(len(self))
        rows = torch.arange(len(self), device=self.graph.device)
        rows = rows.repeat_interleave(self.num_frames)
        still, step = self.graph[rows], _steps(self.way, self.num_frames)[rows]
        return replace(
            still,
            x=still.x + step[..., 0] * number[:, None],
            y=still.y + step[..., 1] * number[:, None],
            exists=still.exists & (self.appears[rows] <= number[:, None]),
        )

    def questions(self, row: int) -> tuple[ClipQuestion, ...]:
        """Return one question of each kind that has a unique answer, on one clip."""
        return _questions(self.graph[row : row + 1], self.way[row], self.appears[row])


def draw_clip_graphs(
    config: SceneConfig,
    split: Split,
    indices: Int64[Tensor, " clips"] | range,
    device: torch.device | str = "cpu",
    *,
    num_frames: int = 8,
) -> ClipGraph:
    """Draw the clips with these indices of a split, without pixels."""
    check_count("num_frames", num_frames)
    graph = draw_scenes(config, split, indices, device)
    way = draws.integers(graph.keys, "clip direction", config.num_slots, len(DIRECTIONS))
    # Objects appear at different times in the first half, if it has enough frames.
    order = draws.permutations(graph.keys, "clip order", config.num_slots)
    appears = order * num_frames // (2 * config.num_slots)
    path, margin = _steps(way, num_frames) * (num_frames - 1), graph.radius[..., None]
    start = torch.stack([graph.x, graph.y], -1)
    start = start.maximum(margin - path.clamp_max(0)).minimum(UNIT - margin - path.clamp_min(0))
    graph = replace(graph, exists=graph.askable, x=start[..., 0], y=start[..., 1])
    return ClipGraph(graph, way, appears, num_frames)


def draw_clips(
    config: SceneConfig, split: Split, indices: range, *, num_frames: int = 8
) -> list[SceneClip]:
    """Draw the clips with these indices of a split; all objects are there in the last frame.

    >>> clip = draw_clips(SceneConfig(height=64, width=64), "train", range(1))[0]
    >>> clip.rgb.shape
    torch.Size([8, 3, 64, 64])
    """
    clips = draw_clip_graphs(config, split, indices, num_frames=num_frames)
    rendered = render(clips.frames())
    rgb, shown = (
        values.unflatten(0, (-1, num_frames)) for values in (rendered.rgb, rendered.instances)
    )
    return [SceneClip(rgb[row], shown[row], clips.questions(row)) for row in range(len(clips))]


def _steps(way: Int64[Tensor, "clips slots"], num_frames: int) -> Int64[Tensor, "clips slots 2"]:
    """Return how far each object moves from frame to frame."""
    return _STEPS.to(way.device)[way] * (UNIT // (4 * num_frames))


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
