"""`python -m benchmarks.tokens.photos` on tiny random parts, and its summary."""

import json
from pathlib import Path

import pytest
from photo_parts import make_host, make_language, make_photos, make_tower

from benchmarks.tokens import photos
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
  two_stage_mmr: {<<: *parts, merger.redundancy: mmr, pruners.redundancy: mmr}
  vision_selector: {<<: *parts, merger.kind: vision_selector, pruners: null}
trials: [{}, {optim.merger.lr: 0.01}]
baselines: [random, pool, fastv, visionzip]
composed: [tome+fastv]
"""


ARMS = ("two_stage", "two_stage_blind", "two_stage_mmr", "vision_selector")


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
             ("random", "pool", "fastv", "visionzip", "tome+fastv", *ARMS)}  # fmt: skip
    controls = {"none", "no image", "other image", "question only"}
    learned = {f"other host, {name}" for name in names if name.startswith(ARMS)}
    assert set(found.variants) == names | controls | learned | {"other host, none"}
    assert {len(bits) for bits in found.right.values()} == {len(found.families)}
    assert len(found.photos) == len(found.families)
    summary = summarise(found)
    assert summary["variants"] == document["variants"]
    rivals = [row["text"] for row in summary["targets"] if row["target"].startswith("ahead@")]
    assert not any(arm in text for arm in ARMS for text in rivals)


def test_plans_are_kept(finished: Path):
    plan = Plan.load(finished / "plans" / "two_stage_0_0")
    assert plan.host == Plan.load(finished / "two_stage_0_0").host
    assert plan.counts((1, 8)) == Plan.load(finished / "two_stage_0_0").counts((1, 8))


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


def test_a_trial_looks_at_the_validation_split_only(
    finished: Path, files: Path, monkeypatch, capsys
):
    asked = []
    read = photos.read_vqa_lines
    monkeypatch.setattr(
        photos, "read_vqa_lines", lambda *a, **k: asked.append(k["split"]) or read(*a, **k)
    )
    before = (finished / "photos.json").stat().st_mtime_ns
    words = [files / "tiny.yaml", "--quick", "--trial", "--host", files / "host", "--questions",
             files / "photos" / "questions.jsonl", "--images", files / "photos" / "images",
             "--out", files / "out", "--json"]  # fmt: skip
    capsys.readouterr()
    assert run_script(run, [str(word) for word in words]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows[-8:]] == [arm for arm in ARMS for _ in range(2)]
    assert set(asked) == {"val"}
    assert (finished / "photos.json").stat().st_mtime_ns == before


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


@pytest.mark.parametrize("key", ["optim.pruners.lr", "pruners.dim"])
def test_trials_of_a_missing_part_are_left_out(files: Path, key: str):
    config = load_config(PhotosConfig, {
        "arms": {"merger_alone": {"pruners": None}}, "trials": [{key: 8}],
    })  # fmt: skip
    study = PhotosStudy(config, Path("host"), Path("q.jsonl"), Path("images"), Path("out"))
    training = study.training("merger_alone", 0, 3)
    assert training.pruners is None
    assert training.train.name == "merger_alone_0_3"
    assert Plan().stages == ()
