"""`python -m benchmarks.patches.photos` with tiny random encoders, and its measures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from photo_parts import make_photos, make_tower
from PIL import Image

from benchmarks.patches import photos
from benchmarks.patches.other_captions import one_by_one
from benchmarks.patches.photos import PhotosConfig, photo_steps, run, summarise
from benchmarks.patches.photos_pointing import pointing
from eligo.captions import CaptionedImage
from eligo.cli import run_script
from eligo.config import load_config
from eligo.patches.metrics import retrieval_metrics
from eligo.patches.model.retrieval_model import RetrievalModel
from pretrained_models import sentence_transformer

TINY = """
arms:
  one vector: {}
  both: {model.match.sparse_ratio: 1.0}
  1/4 relevant: {}
  1/4 random: {}
  SEPS, other captions:
    {model.match.kind: paper, model.match.dense: true, model.encoders.max_dense_words: 30}
  fine-tuned: {model.encoders.backbone_lr: 0.1, data.cache: null, data.cache_mirrored: false}
kinds: {one vector: one vector, 1/4 random: random, "SEPS, other captions": other captions}
starts: {fine-tuned: 1/4 relevant}
ours: 1/4 relevant
"""

TRIAL = """
arms: {mean: {model.match.relevance: mean}, all then: {model.match.relevance: mean}}
scored: {all then: {sparse_ratio: 1.0}}
ours: mean
"""


def make_rooms(folder: Path, frames: int = 3) -> Path:
    """Write frames whose left half is a bed (class 4)."""
    for name in ("rgb", "label"):
        (folder / name).mkdir(parents=True)
    for number in range(frames):
        pixels = np.random.default_rng(number).integers(0, 255, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "rgb" / f"{number:04d}.png")
        label = np.zeros((24, 32), np.uint8)
        label[:, :16] = 4
        Image.fromarray(label).save(folder / "label" / f"{number:04d}.png")
    (folder / "test.txt").write_text("".join(f"{number:04d}\n" for number in range(frames)))
    (folder / "train.txt").write_text("0001\n")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    make_tower("dinov2", folder / "vision", layers=12)
    sentence_transformer(folder / "text", nested=False)
    make_photos(folder / "photos", count=48)
    make_rooms(folder / "rooms")
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "trial.yaml").write_text(TRIAL)
    return folder


def run_study(folder: Path, name: str, *flags: str | int) -> Path:
    words = [
        folder / name, "--quick", *flags,
        "--captions", folder / "photos" / "captions.json", "--images", folder / "photos" / "images",
        "--vision", folder / "vision", "--text", folder / "text" / "minilm",
        "--rooms", folder / "rooms", "--out", folder / name.removesuffix(".yaml"),
    ]  # fmt: skip
    assert run_script(run, [str(word) for word in words]) == 0
    return folder / name.removesuffix(".yaml") / "quick"


@pytest.fixture(scope="module")
def finished(files: Path) -> Path:
    return run_study(files, "tiny.yaml", "--workers", 2)


def test_a_trial_looks_at_val_and_training_frames(files: Path, monkeypatch):
    looked = []
    read = photos.read_captions
    monkeypatch.setattr(photos, "read_captions", lambda d, s: looked.append(s) or read(d, s))
    folder = run_study(files, "trial.yaml", "--trial")
    assert looked == ["val", "val"]
    quarter, whole = (
        json.loads((folder / name / "result.json").read_text()) for name in ("0_0", "1_0")
    )
    assert quarter["pointing"]["frames"] == ["0001"]
    assert quarter["validation"] == whole["validation"]  # trained alike
    assert whole["config"]["scored"] == {"sparse_ratio": 1.0}
    assert json.loads((folder / "photos.json").read_text())["trial"]


def test_every_arm_is_scored(finished: Path):
    document = json.loads((finished / "photos.json").read_text())
    rows = {row["arm"]: row for row in document["arms"]}
    assert list(rows)[2:5] == ["1/4 relevant", "1/4 random", "SEPS, other captions"]
    assert rows["1/4 relevant"]["ahead"] == 0
    assert "kept" in rows["both"]
    assert "kept" not in rows["one vector"]
    for row in rows.values():
        assert row["low"] <= row["rsum"] <= row["high"]
        assert row["rsum"] == pytest.approx(20 * np.mean(document["photos"][row["arm"]]), abs=0.1)


def test_a_caption_is_never_in_the_dense_text_of_its_own_pair():
    captions = tuple(f"caption {n}" for n in range(5))
    images = [CaptionedImage(n, Path(f"{n}.jpg"), captions, ()) for n in range(2)]
    found = one_by_one(images)
    assert [image.index for image in found] == [0, 1] * 5
    for image in found:
        others = set(captions) - set(image.captions)
        assert set(image.dense.split(". ")) == others
        assert len(others) == 4


def test_contributions_of_photos_add_up_to_rsum():
    scores = torch.randn(20, 60)
    positive = torch.eye(20, dtype=torch.bool).repeat_interleave(3, 1)
    steps = photo_steps(scores, positive)
    assert 20 * np.mean(steps) == pytest.approx(retrieval_metrics(scores, positive).rsum, abs=0.1)


def test_pointing_measures_the_patches_of_the_thing(tmp_path):
    model = RetrievalModel.tiny(kind="late", sparse_ratio=1.0).eval()
    model.net.typicality = 0.0
    rooms = make_rooms(tmp_path / "rooms")
    found = pointing(model, rooms, ratio=1.0)
    assert found["kept"] == 1.0  # all patches are kept
    assert found["pairs"] == 3
    # The middle square is 24 wide, from column 4; the bed covers its first 12 columns: 3 of 7
    # columns of patches, and half of the fourth, which is not more than half.
    assert found["chance"] == pytest.approx(3 / 7)
    assert 0 <= found["hit"] <= 1


def test_the_lead_is_paired_by_photo():
    config = load_config(
        PhotosConfig, {"arms": {"a": {}, "both": {}}, "ours": "a", "seeds": [0], "resamples": 200}
    )
    runs = {
        "a": [{"photos": [3.0, 20.0, 7.0] * 20, "test": {"i2t_r1": 1, "t2i_r1": 1},
               "validation": {"rsum": 1}}],
        "both": [{"photos": [2.0, 19.0, 6.0] * 20, "test": {"i2t_r1": 1, "t2i_r1": 1},
                  "validation": {"rsum": 1}}],
    }  # fmt: skip
    rows = {row["arm"]: row for row in summarise(config, runs)["arms"]}
    assert rows["both"]["ahead"] == pytest.approx(20)
    assert rows["both"]["ahead_low"] == pytest.approx(20)
    assert rows["both"]["high"] - rows["both"]["low"] > 5
