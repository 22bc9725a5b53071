"""Tiny random models in the folders of the shipped ones, for smoke tests of commands."""

from pathlib import Path

import torch

from eligo.config import load_config
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pixels.config import PixelsTrainConfig
from eligo.pixels.inference.segmenter import Segmenter, text_encoder
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.training.task import with_classes
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, save_vlm
from eligo.shots.config import PointerSelectorV1Config
from eligo.shots.model.pretrained import build_model
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1

VLM = VlmConfig(
    image_size=84, vision_layers=2, vision_width=8, layers=4, width=16, hidden=32, heads=2
)
LEARNER = VlmConfig(
    image_size=56, vision_layers=2, vision_width=32, layers=4, width=32, hidden=64, heads=2
)


def vlm(folder: Path, sizes: VlmConfig) -> None:
    save_vlm(build_vlm(sizes), build_processor(sizes), folder)


def plan(folder: Path) -> None:
    heads = LayerPruners(PrunersShape(layers=(1, 2), width=VLM.width, dim=8, num_heads=2))
    merger = TokenMerger(MergerShape(width=VLM.vision_width, dim=8))
    Plan(Stage1(merger, 20), [Cut(1, heads[1], 12), Cut(2, heads[2], 6)]).save(folder)


def segmenter(folder: Path) -> None:
    config = with_classes(load_config(PixelsTrainConfig, "pixels/scenes").smoke())
    Segmenter(config, PixelsModel(config), text_encoder(config)).save_pretrained(folder)


def selector(folder: Path) -> None:
    config = PointerSelectorV1Config(d_model=LEARNER.width, hidden_dim=8, K=4, shot_num=2)
    build_model(config).save_pretrained(folder)


MAKERS = {
    "vlm": lambda folder: vlm(folder, VLM),
    "tokens_small": plan,
    "patches": lambda folder: RetrievalModel.tiny().save_pretrained(folder),
    "pixels": segmenter,
    "shots_learner": lambda folder: vlm(folder, LEARNER),
    "shots_v1": selector,
}


def make_models(root: Path, *names: str) -> Path:
    """Creates the models of the given names (by default all), each with a card."""
    torch.manual_seed(0)
    for name in names or MAKERS:
        MAKERS[name](root / name)
        (root / name / "README.md").write_text(f"# {name}\n")
    return root
