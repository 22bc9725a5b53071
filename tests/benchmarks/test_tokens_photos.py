"""`python -m benchmarks.tokens.photos` on tiny random parts, and its summary."""

import json
from pathlib import Path

import pytest
from photo_parts import make_host, make_language, make_photos, make_tower

from benchmarks.tokens.photos import PhotosConfig, PhotosStudy, run
from benchmarks.tokens.photos_summary import MEAN, PhotoResults, summarise
from eligo.cli import run_script
from eligo.config import load_config
from eligo.tokens.inference.equal_cost import spending
from eligo.tokens.plan import Plan

TINY = """
base: tokens/photos
points: [8, 4]
middle: 4
arms:
  two_stage: &parts
    merger.budget: 6
    merger.dim: 8
    merger.num_heads: 2
    pruners.layers: [1, 2]
    pruners.budgets: [4, 2]
    pruners.dim: 8
    pruners.num_heads: 2
    discriminator.layers: [-1]
    scales: [0.5, 1.0]
  two_stage_blind: {<<: *parts, merger.kind: simple, pruners.kind: simple}
trials: [{}, {optim.merger.lr: 0.01}]
baselines: [random, pool, fastv, visionzip]
composed: [tome+fastv]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    make_tower("dinov2", folder / "tower")
    make_language(folder / "language")
    make_photos(folder / "photos")
    for name in ("host", "other"):
        make_host(folder, name)
    (folder / "tiny.yaml").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def finished(files: Path) -> Path:
    photos = files / "photos"
    words = [
        files / "tiny.yaml", "--quick", "--host", files / "host",
        "--other_host", files / "other", "--questions", photos / "questions.jsonl",
        "--images", photos / "images", "--out", files / "out",
    ]  # fmt: skip
    assert run_script(run, [str(word) for word in words]) == 0
    return files / "out" / "quick"


def test_every_variant_answers_every_question(finished: Path):
    document = json.loads((finished / "photos.json").read_text())
    found = PhotoResults.unpacked(document)
    names = {f"{name}@{point}" for point in (8, 4) for name in
             ("random", "pool", "fastv", "visionzip", "tome+fastv", "two_stage",
              "two_stage_blind")}  # fmt: skip
    controls = {"none", "no image", "other image", "question only"}
    learned = {f"other host, {name}" for name in names if name.startswith("two_stage")}
    assert set(found.variants) == names | controls | learned | {"other host, none"}
    assert {len(bits) for bits in found.right.values()} == {len(found.families)}
    assert len(found.photos) == len(found.families)
    assert summarise(found)["variants"] == document["variants"]


def test_learned_plans_cost_at_most_the_point(finished: Path, files: Path):
    config = load_config(PhotosConfig, files / "tiny.yaml")
    study = PhotosStudy(config, files / "host", files / "photos" / "questions.jsonl",
                        files / "photos" / "images", finished, quick=True)  # fmt: skip
    study.device = "cpu"  # pyright: ignore[reportAttributeAccessIssue]
    study._load(files / "host")
    for point in config.points:
        plan = study._learned("two_stage", 0, 0, point)
        larger = plan.scaled((plan.stages[0].budget + 1) / plan.stages[0].budget)
        assert spending(study.shape, plan, study.text) <= study.allowed(point)
        assert spending(study.shape, larger, study.text) > study.allowed(point)


def test_the_second_run_answers_nothing_again(finished: Path, files: Path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("benchmarks.tokens.photo_answers.answer_questions", refuse)
    before = (finished / "photos.json").read_bytes()
    words = [files / "tiny.yaml", "--quick", "--host", files / "host", "--other_host",
             files / "other", "--questions", files / "photos" / "questions.jsonl",
             "--images", files / "photos" / "images", "--out", files / "out"]  # fmt: skip
    assert run_script(run, [str(word) for word in words]) == 0
    assert (finished / "photos.json").read_bytes() == before


def test_settings_are_chosen_by_the_mean_over_families():
    """Right in a rare family counts as much as in a frequent one."""
    families = ["exist"] * 8 + ["colour"] * 2
    right = {"a": "1111111100", "b": "1111000011"}
    results = PhotoResults(families, right, {}, {}, photos=list(range(10)), resamples=100)
    assert results.accuracies("a")[MEAN] == 50.0
    assert results.accuracies("b")[MEAN] == 75.0
    assert results.difference("b", "a")[0] == pytest.approx(25.0)
    assert results.difference("b", "a", "exist")[0] == pytest.approx(-50.0)


def test_questions_on_one_photo_are_drawn_together():
    """Twice the questions on the same photos give the same interval."""
    bits = "1101001110"
    once = PhotoResults(["exist"] * 10, {"a": bits, "b": "0" * 10}, {}, {}, photos=list(range(10)),
                        resamples=500)  # fmt: skip
    twice = PhotoResults(["exist"] * 20, {"a": bits * 2, "b": "0" * 20}, {}, {},
                         photos=[*range(10), *range(10)], resamples=500)  # fmt: skip
    assert once.difference("a", "b") == pytest.approx(twice.difference("a", "b"))


def test_trials_of_a_missing_part_are_left_out(files: Path):
    config = load_config(PhotosConfig, {
        "arms": {"merger_alone": {"pruners": None}}, "trials": [{"optim.pruners.lr": 0.01}],
    })  # fmt: skip
    study = PhotosStudy(config, Path("host"), Path("q.jsonl"), Path("images"), Path("out"))
    training = study.training("merger_alone", 0, 3)
    assert training.pruners is None
    assert training.train.name == "merger_alone_0_3"
    assert Plan().stages == ()
