"""Evaluation: exhaustive scores, folds, the check for leaks, pointing, the command."""

import json

import pytest
import torch
from patch_models import karpathy

from benchmarks.patches.leak import leak_test
from benchmarks.patches.pointing import mentioned, pointing
from eligo.cli import main
from eligo.errors import InputError
from eligo.patches.config import KarpathyDataConfig
from eligo.patches.data.file_source import FileSet
from eligo.patches.data.readers import read_captions
from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import score_set, score_with_oracle
from eligo.patches.metrics import coco_folds, fold_means, retrieval_metrics
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.scenes import SceneConfig


def scenes(count=6, captions=2) -> SceneSet:
    return SceneSet(
        SceneConfig(height=56, width=56), "validation", count, captions, torch.device("cpu")
    )


@pytest.mark.parametrize(("kind", "dense"), [("global", False), ("open", True), ("paper", True)])
def test_scores_equal_those_of_single_pairs(kind, dense):
    data, model = scenes(), RetrievalModel.tiny(kind=kind, dense=dense).eval()
    found = score_set(model, data)
    assert found.shape == (6, 12)
    assert not found.requires_grad
    texts = [data.captions.text(scene, number) for scene in range(6) for number in range(2)]
    for image, text in ((0, 0), (3, 11), (5, 4)):
        printed = None
        if dense:
            words = data.dense_words[image : image + 1]
            from eligo.scenes.phrases import to_text

            printed = [to_text(words[0].tolist())]
        side = model.image_side(data.rendered.rgb[image : image + 1], printed)
        alone = model.match(side, model.text_side([texts[text]]))
        assert torch.allclose(found[image, text], alone[0, 0], atol=1e-5)


def test_folds_follow_coco():
    scores, owners = torch.randn(10, 50), torch.arange(10).repeat_interleave(5)
    positive = owners == torch.arange(10).unsqueeze(1)
    expected = coco_folds(scores, num_folds=5)
    assert fold_means(scores, positive, owners, 5) == pytest.approx(expected)
    for wrong in (3, 0):
        with pytest.raises(InputError, match=f"folds: got {wrong}, expected a divisor of the 10"):
            fold_means(scores, positive, owners, wrong)


@pytest.mark.parametrize("kind", ["open", "paper"])
def test_published_network_leaks_and_ours_does_not(kind):
    model = RetrievalModel.tiny(kind=kind, dense=True).eval()
    assert leak_test(model, scenes()) == {"passes": True, "documented_leaks": True}
    # If all dense captions are equal, they carry no information about the pair.
    data = scenes()
    data.dense_words = data.dense_words[:1].expand(6, -1)
    assert torch.equal(
        score_with_oracle(model, data), score_with_oracle(model, data, data.owners.roll(2))
    )
    with pytest.raises(InputError, match="takes no dense text"):
        score_with_oracle(RetrievalModel.tiny(kind="global"), data)


def test_leak_check_detects_a_leak(monkeypatch):
    """The check fails if the dense text of an image reaches other rows."""
    model = RetrievalModel.tiny(dense=True).eval()
    honest = RetrievalModel.image_side

    def leaking(self, images, dense=None):
        if dense is not None:
            dense = type(dense)(dense.words.mean(0, keepdim=True) + dense.words, dense.mask)
        return honest(self, images, dense)

    monkeypatch.setattr(RetrievalModel, "image_side", leaking)
    assert not leak_test(model, scenes())["passes"]


def test_mentioned_patches_match_the_pixels():
    data = scenes(3)
    share = mentioned(data, (7, 7))
    for scene in range(3):
        for caption in range(2):
            slots = data.captions.deciding[scene, caption].nonzero().flatten() + 1
            pixels = torch.isin(data.rendered.instances[scene].long(), slots)
            assert pixels.any()
            for row in range(7):
                for column in range(7):
                    tile = pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
                    assert share[scene, caption, 7 * row + column] == pytest.approx(
                        float(tile.float().mean())
                    )


def test_pointing_with_known_selection():
    """A selection that scores patches by their true content always points correctly."""
    data, model = scenes(4), RetrievalModel.tiny().eval()
    found = pointing(model, data)
    assert 0 <= found["hit"] <= 1
    assert 0 < found["chance"] < 0.5
    # Chance among mentioned objects is higher than among all things.
    shown = torch.stack([
        (data.rendered.instances[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] > 0)
        .float().mean((1, 2)) >= 0.25
        for row in range(7) for column in range(7)
    ], 1)  # fmt: skip
    on = mentioned(data, (7, 7)) >= 0.25
    among = on.sum(2) / shown.sum(1, keepdim=True).clamp_min(1)
    assert found["chance_on_things"] == pytest.approx(float(among.mean()))
    assert found["chance_on_things"] > found["chance"]
    share = mentioned(data, (7, 7)).flatten(0, 1)  # (texts, patches)
    match = model.net.match

    def oracle(images, texts, decisions):
        output = match(images, texts, decisions=decisions)
        score = share.expand(len(images.patches), -1, -1)
        return output._replace(sparse=output.sparse._replace(score=score))

    model.net.match = oracle
    best = share.amax(1) >= 0.25
    assert pointing(model, data)["hit"] == pytest.approx(float(best.float().mean()))


def test_evaluate_command(tmp_path, capsys, monkeypatch):
    RetrievalModel.tiny(kind="open").save_pretrained(tmp_path / "model")
    arguments = ["patches", "evaluate", str(tmp_path / "model"), "--device", "cpu", "--json"]
    assert (
        main([*arguments, "--scenes", "10", "--folds", "5", "--out", str(tmp_path / "r.json")]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["texts"], found["wiring"]) == (10, 20, "ours")
    assert "rsum, mean of 5 folds" in found
    assert json.loads((tmp_path / "r.json").read_text())["rsum"] == found["rsum"]
    assert main([*arguments, "--scenes", "6", "--oracle"]) == 0
    assert json.loads(capsys.readouterr().out)["wiring"].startswith("ORACLE")
    with monkeypatch.context() as never:
        never.setattr(RetrievalModel, "match", None)  # folds are checked before any scoring
        assert main([*arguments, "--scenes", "6", "--folds", "4"]) == 2
        assert "divisor of the 6 images" in capsys.readouterr().err
    assert main([*arguments, "--captions", "some.json"]) == 2
    assert "go together" in capsys.readouterr().err


def test_evaluate_command_on_files(tmp_path, capsys):
    model = RetrievalModel.tiny(kind="open")
    model.save_pretrained(tmp_path / "model")
    captions, images = karpathy(tmp_path, ("test", "test", "val", "test"), captions=5)
    (images / "picture_3.png").write_bytes(b"broken")
    arguments = ["patches", "evaluate", str(tmp_path / "model"), "--device", "cpu", "--json"]
    assert main([*arguments, "--captions", str(captions), "--images", str(images)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["texts"], found["unreadable"]) == (2, 10, 1)
    data = FileSet(
        read_captions(KarpathyDataConfig(captions=captions, images=images), "test"), model
    )
    expected = retrieval_metrics(score_set(model.eval(), data), data.positive).as_dict()
    assert found["rsum"] == pytest.approx(expected["rsum"])
    assert main([*arguments, "--captions", str(captions), "--images", str(images), "--oracle"]) == 2
    assert "no dense caption" in capsys.readouterr().err
