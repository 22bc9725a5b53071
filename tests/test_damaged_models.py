"""A model folder with a damaged file is refused in one line, or loads unchanged."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from eligo.config import load_config
from eligo.errors import EligoError
from eligo.patches.index import IndexFolder, ScenePictures, build_index
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pixels.config import PixelsTrainConfig
from eligo.pixels.inference.segmenter import Segmenter, plain_config, text_encoder
from eligo.pixels.model.model import PixelsModel
from eligo.scenes.config import VlmConfig
from eligo.scenes.vlm import build_processor, build_vlm, load_vlm, save_vlm
from eligo.shots import PointerSelectorV2, PointerSelectorV2Config, build_model_v2
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import load_selector
from eligo.tokens import Cut, LayerPruners, Plan, Stage1, TokenMerger
from eligo.tokens.model.layer_pruners import PrunersShape
from eligo.tokens.model.token_merger import MergerShape

SMALL = VlmConfig(
    image_size=28, vision_width=16, vision_layers=2, layers=1, width=16, hidden=16, heads=2
)


def save_plan(folder: Path) -> None:
    heads = LayerPruners(PrunersShape(layers=(1,), width=12, dim=16, num_heads=2))
    merger = TokenMerger(MergerShape(width=8, dim=16))
    Plan(Stage1(merger, 9), [Cut(1, heads[1], 6)]).save(folder)


def save_segmenter(folder: Path) -> None:
    small = {"encoder.depths": (1, 1, 1, 1), "sam.encoder.stages": (3,), "sam.decoder.stages": (1,)}
    config = plain_config(load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace(small))
    Segmenter(config, PixelsModel(config), text_encoder(config)).save_pretrained(folder)


def pointer() -> PointerSelectorV2:
    model = build_model_v2(PointerSelectorV2Config(d_model=8, hidden_dim=8, state="gru"))
    assert isinstance(model, PointerSelectorV2)
    return model


def save_selector(folder: Path) -> None:
    pool = Pool([f"example {n}" for n in range(5)], torch.randn(5, 8))
    LearnedSelector.of(pointer(), pool).save_pretrained(folder)


def save_index(folder: Path) -> None:
    model = RetrievalModel.tiny().eval()
    build_index(lambda: model, ScenePictures.first(3, 56), folder, shard_size=2)


def read_index(folder: Path) -> None:
    index = IndexFolder(folder)
    assert len(index.entries) == len(index)
    assert all(shard.tensors for shard in index.shards)


class Kind(NamedTuple):
    save: Callable[[Path], None]
    load: Callable[[Path], Any]


KINDS = {
    "vlm": Kind(lambda path: save_vlm(build_vlm(SMALL), build_processor(SMALL), path), load_vlm),
    "retrieval": Kind(
        lambda path: RetrievalModel.tiny().save_pretrained(path), RetrievalModel.from_pretrained
    ),
    "segmenter": Kind(save_segmenter, Segmenter.from_pretrained),
    "plan": Kind(save_plan, Plan.from_pretrained),
    "pointer": Kind(
        lambda path: pointer().save_pretrained(path), PointerSelectorV2.from_pretrained
    ),
    "selector": Kind(save_selector, load_selector),
    "index": Kind(save_index, read_index),
}


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "removed": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "half": truncate,
    "noise": lambda path: path.write_bytes(random.Random(0).randbytes(300)),
    "a folder": folder,
}
TEXT_DAMAGE: dict[str, Callable[[Path], Any]] = {
    "a list": lambda path: path.write_text("[1, 2]\n"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "other fields": lambda path: path.write_text(
        '{"model_type": 3, "format": [], "model": [], "kind": {}, "id": null}\n'
    ),
}


def problem(load: Callable[[], Any]) -> str:
    """The error message, if any; other exceptions fail the test."""
    try:
        load()
    except EligoError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", KINDS)
def test_damaged_model_is_refused_in_one_line(name, tmp_path):
    kind, there = KINDS[name], tmp_path / "model"
    kind.save(there)
    for file in sorted(path for path in there.rglob("*") if path.is_file()):
        is_weights, content = file.suffix == ".safetensors", file.read_bytes()
        for damage, apply in (DAMAGE if is_weights else DAMAGE | TEXT_DAMAGE).items():
            apply(file)
            what = f"{file.relative_to(there)}: {damage}"
            message = problem(lambda: kind.load(there))
            assert message or not is_weights, f"{what}: loaded"
            assert len(message.splitlines()) <= 1, f"{what}: {message}"
            if file.is_dir():
                file.rmdir()
            file.write_bytes(content)
    kind.load(there)


@pytest.mark.parametrize(
    ("name", "file", "was", "becomes"),
    [
        ("retrieval", "config.yaml", r"embed_dim: \d+", "embed_dim: 100000000"),
        ("segmenter", "config.yaml", "text_dim: 16", "text_dim: 4000000000"),
        ("segmenter", "config.yaml", "num_classes: 14", "num_classes: 4000000000"),
        ("plan", "token_merger.json", '"dim": 16', '"dim": 1000000'),
        ("plan", "layer_pruners.json", '"width": 12', '"width": 4000000000'),
        ("pointer", "config.yaml", "hidden_dim: 8", "hidden_dim: 1000000"),
        ("selector", "selector.json", '"hidden_dim": 8', '"hidden_dim": 1000000'),
    ],
)
def test_config_larger_than_the_weights_allocates_nothing(name, file, was, becomes, tmp_path):
    kind, there = KINDS[name], tmp_path / "model"
    kind.save(there)
    text = (there / file).read_text()
    assert re.search(was, text)
    (there / file).write_text(re.sub(was, becomes, text))
    message = problem(lambda: kind.load(there))
    assert len(message.splitlines()) == 1
    assert "expected config and weights of one model" in message
