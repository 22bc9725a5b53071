"""`python -m benchmarks.pixels.rooms` on generated frames in NYUv2's layout, and its measures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from photo_parts import make_tower
from PIL import Image

from benchmarks.pixels.rooms import run
from benchmarks.pixels.rooms_data import CLASSES, precision_recall, tagged_classes
from benchmarks.pixels.rooms_summary import Bootstrap, mean_iou, summarise
from benchmarks.pixels.rooms_tagger import tag_frames
from eligo.cli import run_script
from eligo.pixels.metrics import confusion_matrix, segmentation_metrics
from pretrained_models import sentence_transformer

TINY = """
steps: {small: 2, S: 2}
lr: {small: 1.0e-3, S: 1.0e-3}
changes: {inputs.size: [48, 64], augment.crop: [48, 64]}
arms:
  rgb, none: {sees: rgb, words: none}
  both, none: {against: "rgb, none", words: none}
  both, class names: {against: "both, none", words: labels}
  both, true: {against: "both, none", words: "true"}
  depth, tagger: {against: "both, none", sees: depth, words: tagger}
  words exchanged 0.5: {against: "both, true", words: other, changes: {text_shuffle: 0.5}}
"""


def make_frames(folder: Path, train: int = 24, test: int = 6) -> Path:
    """Write frames whose left half is one class and whose right half another."""
    for name in ("rgb", "depth", "label"):
        (folder / name).mkdir(parents=True)
    for number in range(1, train + test + 1):
        random = np.random.default_rng(number)
        pixels = random.integers(0, 255, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "rgb" / f"{number:04d}.png")
        depth = random.integers(0, 255, (48, 64), dtype=np.uint8)
        Image.fromarray(depth).save(folder / "depth" / f"{number:04d}.png")
        label = np.zeros((48, 64), np.uint8)
        label[:, :32], label[:, 32:60] = 1 + number % 3, 39
        Image.fromarray(label).save(folder / "label" / f"{number:04d}.png")
    numbers = [f"{number:04d}\n" for number in range(1, train + test + 1)]
    (folder / "train.txt").write_text("".join(numbers[:train]))
    (folder / "test.txt").write_text("".join(numbers[train:]))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rooms")
    make_tower("dinov2", folder / "vision", layers=2)
    sentence_transformer(folder / "text", nested=False)
    (folder / "tiny.yaml").write_text(TINY)
    words = [
        folder / "tiny.yaml", "--quick", "--workers", 2, "--rooms", make_frames(folder / "nyu"),
        "--vision", folder / "vision", "--text", folder / "text" / "minilm",
        "--out", folder / "out",
    ]  # fmt: skip
    for _ in range(2):  # the second call only reads results
        assert run_script(run, [str(word) for word in words]) == 0
    return folder / "out" / "quick"


def test_every_arm_is_scored_with_every_kind_of_words(finished: Path):
    document = json.loads((finished / "rooms.json").read_text())
    rows = {row["arm"]: row for row in document["arms"]}
    assert len(rows) == 6
    assert rows["both, true"]["tested with"].keys() == {"none", "true", "tagger", "other"}
    assert "tested with" not in rows["both, class names"]
    kinds = {"none", "only true", "only tagger", "only other"}
    assert rows["both, none"]["tested with"].keys() == kinds
    assert rows["both, true"]["ahead of only"].keys() == {"points", "low", "high"}
    assert rows["depth, tagger"]["words"] == "tagger"
    assert rows["both, none"]["ahead of"]["arm"] == "rgb, none"
    first = document["compared"][0]
    assert (first["arm and words"], first["less"]) == (
        ["both, true", "tagger"], ["both, none", "only tagger"]
    )  # fmt: skip
    for row in (*rows.values(), first):
        assert row["low"] <= row["points"] <= row["high"]
    assert {"precision", "recall"} == document["tagger"]["test"].keys()


def test_only_the_classes_of_the_tags_are_predicted(finished: Path):
    """A network without words, restricted to the true tags or to another frame's."""
    with np.load(finished / "1_0" / "counts.npz") as stored:
        counts = dict(stored)
    ids = [f"{number:04d}" for number in range(25, 31)]
    for kind in ("true", "other"):
        allowed = tagged_classes(finished / "data", kind, ids).numpy()
        predicted = counts[f"only {kind}"][:, 2]
        assert (predicted[~allowed] == 0).all()
        assert (predicted.sum(1) == counts["none"][:, 2].sum(1)).all()
        assert (counts[f"only {kind}"][:, 1] == counts["none"][:, 1]).all()
    labelled = counts["none"][:, 1] > 0
    assert (tagged_classes(finished / "data", "true", ids).numpy() == labelled).all()


def test_the_validation_frames_are_blocks(finished: Path):
    log = (finished / "3_0" / "config.yaml").read_text()
    assert "validation_block: 10" in log
    assert not (finished / "3_0" / "checkpoints").exists()
    assert json.loads((finished / "3_0" / "result.json").read_text())["best_step"] is not None


def test_tags_are_those_of_the_labels_or_of_another_frame(finished: Path):
    read = {
        kind: [json.loads(line) for line in (finished / f"data/tags_{kind}.jsonl").open()]
        for kind in ("true", "tagger", "other")
    }
    assert read["true"][0] == {"id": "0001", "tags": [CLASSES[1], CLASSES[38]]}
    assert read["other"][0]["tags"] == read["true"][12]["tags"]
    assert read["other"][24]["tags"] == read["true"][27]["tags"]
    assert [row["id"] for row in read["tagger"]] == [row["id"] for row in read["true"]]


def test_the_tagger_does_not_see_the_frames_that_it_tags():
    random = torch.Generator().manual_seed(0)
    shown = torch.rand(100, 3, generator=random) < 0.4
    noise = torch.randn(100, 200, generator=random)  # enough to learn every frame by heart
    found = tag_frames(noise, noise, shown)
    assert precision_recall(found.train, shown)["precision"] == pytest.approx(0.4, abs=0.1)
    features = torch.cat((noise[:, :20], 3 * shown.float()), 1)
    found = tag_frames(features, features[:50], shown)
    for tags, true in ((found.train, shown), (found.test, shown[:50])):
        assert min(precision_recall(tags, true).values()) > 0.95


def test_mean_iou_agrees_with_the_library():
    random = torch.Generator().manual_seed(0)
    predicted, labels = (torch.randint(0, 5, (4, 9), generator=random) for _ in range(2))
    matrix = confusion_matrix(predicted, labels, 7)  # two classes never occur
    counts = torch.stack((matrix.diagonal(), matrix.sum(1), matrix.sum(0)))
    assert mean_iou(counts.numpy()) == pytest.approx(segmentation_metrics(matrix).miou)


def test_differences_are_paired_by_frame():
    random = np.random.default_rng(0)
    labelled = random.integers(50, 100, (40, 1, 4))
    right = random.integers(10, 40, (40, 1, 4))
    worse = np.concatenate((right, labelled, labelled), 1)
    better = np.concatenate((right + 5, labelled, labelled), 1)
    found = {"a": [{"true": better}] * 2, "b": [{"true": worse}] * 2}
    drawn = Bootstrap(found, 200)
    alone, lead = drawn.interval(("a", "true")), drawn.interval(("a", "true"), ("b", "true"))
    assert 0 < lead["low"] <= lead["points"] <= lead["high"]
    assert lead["high"] - lead["low"] < 0.5 * (alone["high"] - alone["low"])
    rows = summarise(found, {"a": "true", "b": "true"}, {"a": "b"}, 200)["arms"]
    assert rows[0]["ahead of"]["points"] == pytest.approx(lead["points"])
    assert "ahead of" not in rows[1]
