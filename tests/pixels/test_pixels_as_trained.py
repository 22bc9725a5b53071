"""A model is used as trained: class names as words, the same text encoder and classes."""

import json
import logging
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.config import load_config
from eligo.config.yaml import dump_yaml, read_yaml
from eligo.errors import InputError
from eligo.pixels import PixelsTrainConfig, Segmenter, predict, train_model
from eligo.pixels.config import ClipTextConfig, WordsTextConfig
from eligo.pixels.inference import export
from eligo.pixels.inference.as_trained import as_trained, describe
from eligo.pixels.inference.segmenter import stored_config
from eligo.pixels.text.encoders import ClipEncoder, WordsEncoder
from eligo.pixels.training import task

TINY = load_config(PixelsTrainConfig, "pixels/scenes").smoke()


@pytest.fixture(scope="module")
def labels_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"train.out": tmp_path_factory.mktemp("runs"), "train.total_steps": 1}
    return train_model(TINY.replace({"text.source": "labels", "gate_start": 0.5, **changes})).folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


# ------------------------------------------------------------------ class names as words


@pytest.mark.parametrize("place", [".", "best", "model"])
def test_predict_uses_the_class_names_of_training(labels_run: Path, image: Path, place: str):
    model = Segmenter.from_pretrained(labels_run / place)
    found = predict(image, model=model)
    assert found.words == model.config.classes
    assert len(found.words) == model.config.num_classes
    named = predict(image, tags=list(model.config.classes), model=model)
    assert torch.equal(found.confidence, named.confidence)
    model.config = model.config.replace({"text.source": "tags"})
    assert not torch.equal(found.confidence, predict(image, model=model).confidence)


def test_other_words_than_in_training_are_logged(labels_run: Path, image: Path, caplog):
    model = Segmenter.from_pretrained(labels_run)
    with caplog.at_level(logging.WARNING, "eligo.pixels"):
        assert predict(image, tags="wall", model=model).words == ("wall",)
        assert "all its class names" in caplog.text
        caplog.clear()
        model.config = model.config.replace({"text.source": "tags", "text.max_tags": 1})
        predict(image, tags="wall, floor", model=model)
        assert "at most 1" in caplog.text
        caplog.clear()
        predict(image, captions="a ball", model=model)
        assert "trained with tags only" in caplog.text
        caplog.clear()
        predict(image, tags="wall", model=model)
        assert not caplog.text


def test_missing_class_names_are_refused(labels_run: Path, image: Path):
    model = Segmenter.from_pretrained(labels_run)
    model.config = model.config.replace({"classes": ()})
    with pytest.raises(InputError, match="class names"):
        predict(image, model=model)


def test_export_writes_the_words(labels_run: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(export, "_export", lambda *_: b"graph")
    segmenter = Segmenter.from_pretrained(labels_run)
    export.export_onnx(segmenter, tmp_path, height=48, width=64)
    about = json.loads((tmp_path / "onnx.json").read_text())
    assert about["words"]["of every image"] == list(segmenter.config.classes)


# ------------------------------------------------------------------ classes of the data


def test_evaluate_refuses_other_classes(labels_run: Path, tmp_path: Path, capsys):
    copytree(labels_run / "best", tmp_path / "model")
    path = tmp_path / "model" / "config.yaml"
    tree = read_yaml(path)[0]
    tree["classes"] = [*tree["classes"][1:], tree["classes"][0]]
    path.write_text(dump_yaml(tree))
    assert main(["pixels", "evaluate", str(tmp_path / "model"), "--split", "validation"]) == 2
    assert "its class 0 is floor, that of the data is wall" in capsys.readouterr().err


# ------------------------------------------------------------------ the text encoder


def clip(folder: Path, seed: int = 0, *, tokenizer: str = "own", words: str = "") -> Path:
    """A tiny CLIP with its own tokenizer, an empty one, or one with few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, PreTrainedTokenizerFast

    words = words or "a photo an image of in room chair red box on the table wall floor ball , . "
    listed = ["<pad>", "<unk>", *words.split()]
    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=len(listed), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, projection_dim=12, max_position_embeddings=24, eos_token_id=1,
    )  # fmt: skip
    CLIPTextModelWithProjection(config).save_pretrained(folder)
    if tokenizer == "empty":  # as transformers creates it without a vocabulary
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
        return folder
    kept = listed[:6] if tokenizer == "small" else listed
    kept = [*kept, "more", "words"] if tokenizer == "large" else kept
    word_level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(kept)}, unk_token="<unk>"))
    word_level.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=word_level, pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [("empty", "no tokenizer"), ("small", "got 6 tokens"), ("large", "another model's")],
)
def test_tokenizer_of_another_encoder_is_refused(tmp_path: Path, tokenizer: str, message: str):
    folder = clip(tmp_path / "clip", tokenizer=tokenizer)
    with pytest.raises(InputError, match=message) as error:
        ClipEncoder(ClipTextConfig(model=str(folder))).encode(["chair"])
    assert str(folder) in str(error.value)


def test_cache_of_another_encoder_is_refused(tmp_path: Path):
    folder, cache = clip(tmp_path / "clip"), tmp_path / "cache.safetensors"
    config = ClipTextConfig(model=str(folder), cache=cache)
    first = ClipEncoder(config).encode(["chair"])
    assert torch.equal(ClipEncoder(config).encode(["chair"]), first)
    before = cache.read_bytes()
    clip(folder, seed=1)
    with pytest.raises(InputError, match=r"cache.*another model"):
        ClipEncoder(config).encode(["chair", "table"])
    assert cache.read_bytes() == before


@pytest.mark.parametrize("changed", ["weights", "tokenizer"])
def test_another_encoder_than_in_training_is_refused(tmp_path: Path, changed: str):
    folder = clip(tmp_path / "clip")
    encoder = ClipEncoder(ClipTextConfig(model=str(folder)))
    segmenter = Segmenter.from_pretrained(train_model(TINY.replace({"train.out": tmp_path})).folder)
    changes = {"text.encoder": {"kind": "clip", "model": str(folder)}, "text_dim": 12}
    segmenter.config = segmenter.config.replace({**changes, "text_probe": encoder.probe()})
    assert segmenter.text(["chair"]) is not None
    words = "chair the on a photo an image of in room red box table wall floor ball , . "
    clip(folder, seed=changed == "weights", words=words if changed == "tokenizer" else "")
    segmenter._encoder = None
    with pytest.raises(InputError, match=r"text.encoder: .* trained with"):
        segmenter.text(["chair"])
    segmenter.config = segmenter.config.replace({"text_probe": None})  # saved by an older eligo
    assert segmenter.text(["chair"]) is not None


def test_training_saves_the_text_probe(tmp_path: Path, monkeypatch):
    class Known(WordsEncoder):
        def probe(self) -> tuple[float, ...]:
            return (0.5, 0.25)

    encoder = Known(WordsTextConfig(dim=16))
    monkeypatch.setattr(task, "text_encoder", lambda _config: encoder)
    folder = train_model(TINY.replace({"train.out": tmp_path})).folder
    for place in ("best", "model"):
        assert stored_config(folder / place).text_probe == (0.5, 0.25)


def test_a_model_of_generated_rooms_says_that_photos_are_not_for_it():
    rooms = describe(as_trained(load_config(PixelsTrainConfig, "pixels/scenes")))
    photos = describe(as_trained(load_config(PixelsTrainConfig, "pixels/rooms")))
    assert rooms.startswith("trained on generated rooms of ")
    assert rooms.endswith("; on photos its classes mean nothing")
    assert "generated" not in photos
    assert "photos" not in photos
