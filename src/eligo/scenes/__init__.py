"""The embedded world: procedural scenes with image, depth, labels, captions, questions, tags.

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.scenes.captions import (
        Captions,
        DenseCaptions,
        draw_captions,
        draw_dense_captions,
        is_true,
    )
    from eligo.scenes.config import ROOMS, SceneConfig
    from eligo.scenes.dataset import SceneDataset
    from eligo.scenes.graph import SceneGraph, draw_scenes
    from eligo.scenes.lexicon import Lexicon, could_mean, draw_lexicons, teaches
    from eligo.scenes.painter import Rendered, label_names, render
    from eligo.scenes.question_kinds import Questions
    from eligo.scenes.questions import draw_questions
    from eligo.scenes.tags import Tags, binding_tags, class_tags, swap_twins
    from eligo.scenes.vlm.model import load_vlm

_HOME = {
    "Captions": "captions",
    "DenseCaptions": "captions",
    "Lexicon": "lexicon",
    "Questions": "question_kinds",
    "ROOMS": "config",
    "Rendered": "painter",
    "SceneConfig": "config",
    "SceneDataset": "dataset",
    "SceneGraph": "graph",
    "Tags": "tags",
    "binding_tags": "tags",
    "class_tags": "tags",
    "could_mean": "lexicon",
    "draw_captions": "captions",
    "draw_dense_captions": "captions",
    "draw_lexicons": "lexicon",
    "draw_questions": "questions",
    "draw_scenes": "graph",
    "is_true": "captions",
    "label_names": "painter",
    "load_vlm": "vlm.model",
    "render": "painter",
    "swap_twins": "tags",
    "teaches": "lexicon",
}
__all__ = [
    "ROOMS",
    "Captions",
    "DenseCaptions",
    "Lexicon",
    "Questions",
    "Rendered",
    "SceneConfig",
    "SceneDataset",
    "SceneGraph",
    "Tags",
    "binding_tags",
    "class_tags",
    "could_mean",
    "draw_captions",
    "draw_dense_captions",
    "draw_lexicons",
    "draw_questions",
    "draw_scenes",
    "is_true",
    "label_names",
    "load_vlm",
    "render",
    "swap_twins",
    "teaches",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
