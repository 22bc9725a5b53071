"""Scenes one by one: a map-style dataset for loaders, examples and exports.

Every item is a pure function of (config, split, index): no state, no file, the same in any worker.
Training code on a GPU draws whole batches there instead (`draw_scenes`, `render`,
`draw_questions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float32, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from eligo.errors import InputError
from eligo.scenes.captions import draw_captions, draw_dense_captions
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import SceneGraph, Split, draw_scenes
from eligo.scenes.painter import Rendered, render
from eligo.scenes.phrases import check_askable
from eligo.scenes.question_kinds import KINDS
from eligo.scenes.questions import draw_questions
from eligo.scenes.tags import Tags, binding_tags, class_tags

NUM_BINDING_TAGS = 16
"""Tags of a binding scene: at least one per object; the others name absent combinations."""


@dataclass(frozen=True)
class SceneQuestion:
    """A question on a scene."""

    question: str
    answer: str
    kind: str
    """One of `questions.KINDS`, by name."""
    family: str
    """One of `questions.FAMILIES`."""
    deciding: tuple[int, ...]
    """The objects that decide the answer, as values of the instance map."""


@dataclass(frozen=True)
class SceneText:
    """Questions, captions and tags of one scene."""

    id: str
    """Split and index: `train_000012`."""
    split: Split
    index: int
    questions: tuple[SceneQuestion, ...]
    """Some scenes have fewer than requested."""
    captions: tuple[str, ...]
    """Sparse captions, one sentence each."""
    dense_caption: str
    """Every object and some relations; empty for scenes with painted objects."""
    tags: tuple[str, ...]


@dataclass(frozen=True)
class SceneItem(SceneText):
    """One scene: texts, image, depth and labels."""

    rgb: UInt8[Tensor, "3 height width"]
    depth: Float32[Tensor, "height width"]
    """In metres; 0 where there is none."""
    depth_mask: Bool[Tensor, "height width"]
    """Where there is a depth; everywhere, unless the dataset has `sensor=True`."""
    labels: UInt8[Tensor, "height width"]
    """Class per pixel; names are `label_names(config)`."""
    instances: UInt8[Tensor, "height width"]
    """0 is the room, i + 1 the thing in slot i of the scene graph."""


class SceneDataset(Dataset[SceneItem]):
    """The first `size` scenes of a split.

    >>> item = SceneDataset(SceneConfig(), "train", 100)[12]
    >>> item.id, tuple(item.rgb.shape), len(item.captions)
    ('train_000012', (3, 336, 336), 1)
    """

    def __init__(
        self,
        config: SceneConfig,
        split: Split,
        size: int,
        *,
        num_questions: int | None = None,
        num_captions: int | None = None,
        sensor: bool = False,
    ) -> None:
        """By default a scene has 8 questions, one sparse caption and a dense one; a scene with
        painted objects has none of them. `sensor` gives depth with noise and holes."""
        if size < 1:
            raise InputError(f"a dataset needs at least one scene, got size {size}")
        self.config, self.size, self.sensor = config, size, sensor
        self.split: Split = split
        self.num_questions = _default(num_questions, 8, config)
        self.num_captions = _default(num_captions, 1, config)
        draw_scenes(config, split, range(1))  # raises here, not in a worker, for a wrong split

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> SceneItem:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[SceneItem]:
        """Return several items at once; loaders call this."""
        wrong = [index for index in indices if not -self.size <= index < self.size]
        if wrong:
            raise IndexError(f"scene {wrong[0]} of {self.size}")
        scenes = torch.tensor([index % self.size for index in indices])
        rendered = render(draw_scenes(self.config, self.split, scenes))
        texts = scene_texts(rendered.graph, self.num_questions, self.num_captions)
        return _items(rendered, texts, self.sensor)


def _default(count: int | None, default: int, config: SceneConfig) -> int:
    if count is None:
        return 0 if config.painted else default
    if count < 0:
        raise InputError(f"got {count} questions or captions, expected 0 or more")
    return count


def scene_texts(graph: SceneGraph, num_questions: int, num_captions: int) -> list[SceneText]:
    """Return questions, captions and tags of a batch of scenes; needs no rendering."""
    if num_questions or num_captions:
        check_askable(graph, "questions and captions")
    questions = _questions(graph, num_questions) if num_questions else [()] * len(graph)
    captions, dense = [()] * len(graph), [""] * len(graph)
    if num_captions:
        drawn, full = draw_captions(graph, num_captions), draw_dense_captions(graph)
        captions = [
            tuple(drawn.text(scene, place) for place in range(num_captions))
            for scene in range(len(graph))
        ]
        dense = [full.text(scene) for scene in range(len(graph))]
    tags = scene_tags(graph)
    return [
        SceneText(
            id=scene_id(graph.split, index),
            split=graph.split,
            index=index,
            questions=questions[scene],
            captions=captions[scene],
            dense_caption=dense[scene],
            tags=tuple(tags.text(scene)),
        )
        for scene, index in enumerate(graph.indices.tolist())
    ]


def scene_id(split: str, index: int) -> str:
    """Return the name of a scene in files: `train_000012`."""
    return f"{split}_{index:06d}"


def scene_tags(graph: SceneGraph) -> Tags:
    """Return the tags of plain or binding scenes."""
    if not graph.config.binding:
        return class_tags(graph)
    return binding_tags(graph, NUM_BINDING_TAGS)


def collate_scenes(items: Sequence[SceneItem]) -> dict[str, Any]:
    """Return a batch by field name: stacked tensors, and lists of everything else.

    For `DataLoader(dataset, batch_size, collate_fn=collate_scenes)`.
    """
    columns = {field.name: [getattr(i, field.name) for i in items] for field in fields(SceneItem)}
    return {
        name: torch.stack(values) if torch.is_tensor(values[0]) else values
        for name, values in columns.items()
    }


def _questions(graph: SceneGraph, count: int) -> list[tuple[SceneQuestion, ...]]:
    drawn = draw_questions(graph, count)
    kinds, valid, deciding = drawn.kind.tolist(), drawn.valid.tolist(), drawn.deciding.tolist()
    return [
        tuple(
            SceneQuestion(
                question=drawn.text(scene, place),
                answer=drawn.answer_text(scene, place),
                kind=KINDS[kinds[scene][place]].name,
                family=KINDS[kinds[scene][place]].family,
                deciding=tuple(
                    i + 1 for i, decides in enumerate(deciding[scene][place]) if decides
                ),
            )
            for place in range(count)
            if valid[scene][place]
        )
        for scene in range(len(graph))
    ]


def _items(rendered: Rendered, texts: list[SceneText], sensor: bool) -> list[SceneItem]:
    if sensor:
        depth, mask = rendered.sensor_depth()
    else:
        depth = rendered.depth
        mask = torch.ones_like(depth, dtype=torch.bool)
    labels = rendered.labels
    return [
        SceneItem(
            **vars(text),
            rgb=rendered.rgb[scene],
            depth=depth[scene],
            depth_mask=mask[scene],
            labels=labels[scene],
            instances=rendered.instances[scene],
        )
        for scene, text in enumerate(texts)
    ]
