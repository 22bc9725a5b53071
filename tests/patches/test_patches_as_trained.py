"""A retrieval model uses the tokenizer it was trained with, or is refused."""

from pathlib import Path

import pytest
from patch_models import text_folder
from tokenizers import Tokenizer

from eligo.config import load_config
from eligo.errors import InputError
from eligo.patches import RetrievalModel
from eligo.patches.config import RetrievalConfig


def config_of(text: str) -> RetrievalConfig:
    small = {"image_size": 56, "patch_size": 8, "width": 16, "layers": 1, "heads": 2}
    return load_config(
        RetrievalConfig, {"encoders": {"small_vision": small, "text": text, "embed_dim": 16}}
    )


def test_text_encoder_without_a_tokenizer_is_refused(tmp_path: Path):
    folder = Path(text_folder(tmp_path))
    assert RetrievalModel.build(config_of(str(folder)))
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match=f"{folder}: holds no tokenizer"):
        RetrievalModel.build(config_of(str(folder)))


def test_saved_model_keeps_its_tokenizer(tmp_path: Path):
    RetrievalModel.tiny().save_pretrained(tmp_path)
    loaded = RetrievalModel.from_pretrained(tmp_path)
    assert loaded.config.encoders.tokenizer is not None
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert RetrievalModel.from_pretrained(again).config == loaded.config


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path):
    RetrievalModel.tiny().save_pretrained(tmp_path)
    path = tmp_path / "text" / "tokenizer.json"
    content = Tokenizer.from_file(str(path)).to_str()
    swapped = (
        content.replace('"red":', '"@":').replace('"blue":', '"red":').replace('"@":', '"blue":')
    )
    assert swapped != content
    path.write_text(swapped)
    with pytest.raises(InputError, match=r"text: its tokenizer is not the one"):
        RetrievalModel.from_pretrained(tmp_path)
    written = (tmp_path / "config.yaml").read_text().splitlines()
    kept = [line for line in written if not line.strip().startswith("tokenizer:")]
    (tmp_path / "config.yaml").write_text("\n".join(kept) + "\n")  # as written by an older eligo
    assert RetrievalModel.from_pretrained(tmp_path)


def test_saved_model_without_its_tokenizer_is_refused(tmp_path: Path):
    RetrievalModel.tiny().save_pretrained(tmp_path)
    for file in (tmp_path / "text").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="text: holds no tokenizer"):
        RetrievalModel.from_pretrained(tmp_path)
