"""The study: variants, metrics against slow oracles, resuming, and targets."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from benchmarks.pixels import study
from benchmarks.pixels.measure import (
    MEASURES,
    PHRASES,
    measure_binding,
    measure_depth,
    measure_twins,
)
from benchmarks.pixels.study import RESULT, LearnedTokensTask, run_study, run_variant
from benchmarks.pixels.summary import summarise
from benchmarks.pixels.variants import (
    BINDING_TARGET,
    FOLLOW_UPS,
    VARIANTS,
    StudyConfig,
)
from benchmarks.studies import QUICK as REMARK
from eligo.cli import run_script
from eligo.errors import ConfigError, EligoError
from eligo.pixels import PixelsModel, PixelsOutput
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.training.task import PixelsTask
from eligo.scenes.graph import CAMOUFLAGED
from eligo.scenes.painter import slot_labels
from eligo.train import Progress, fit

QUICK = StudyConfig().quick()


def test_every_variant_builds_and_is_different():
    config = StudyConfig()
    runs = {name: config.run(name, 0) for name in VARIANTS}
    shown = [run.model_dump_json(exclude={"train"}) for run in runs.values()]
    alike = {
        "twins_learned_tokens",
        "binding_learned_tokens",
    }  # share the configs of the variants with words
    assert {name for name, one in VARIANTS.items() if one.learned_tokens} == alike
    assert len(set(shown)) == len(shown) - len(alike)
    assert {run.train.total_steps for run in runs.values()} == {1500, 2500}
    sizes = {
        name: sum(p.numel() for p in PixelsModel(run).parameters())
        for name, run in runs.items()
        if name in ("twins_tags", "twins_more_parameters")
    }
    assert sizes["twins_more_parameters"] == pytest.approx(sizes["twins_tags"], rel=0.05)


def test_variants_with_a_target_have_all_seeds():
    jobs = StudyConfig().jobs()
    counts = {name: sum(job[0] == name for job in jobs) for name in VARIANTS}
    assert all(
        counts[name] == (3 if variant.has_target else 1) for name, variant in VARIANTS.items()
    )
    assert VARIANTS[BINDING_TARGET].has_target


class Prepared(PixelsModel):
    """Returns prepared predictions, whatever the input."""

    def __init__(self, name: str) -> None:
        super().__init__(QUICK.run(name, 0))
        self.answers: list[torch.Tensor] = []

    def forward(self, *_, **__) -> PixelsOutput:
        answer = self.answers.pop(0).long()
        return PixelsOutput(F.one_hot(answer, self.config.num_classes).movedim(-1, 1).float())


def source_of(name: str) -> SceneSource:
    source = PixelsTask(QUICK.run(name, 0).replace({"data.test_images": 6})).source
    assert isinstance(source, SceneSource)
    return source


def test_twin_iou_without_words_is_at_most_a_third():
    """The best guess without words: always the first name, or any mixture."""
    source = source_of("twins_tags")
    labels = source.scenes("test").rendered.labels.long()
    first = torch.tensor(
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5, 8, 9]
    )  # first name of each pair of twins
    for guess in (first[labels], labels):
        model = Prepared("twins_tags")
        model.answers = [guess] * 10
        found = measure_twins(model, source)
        assert found["twin_iou"] <= 1 / 3 + 1e-6
        assert found["merged_iou"] == pytest.approx(1)
        assert found["other_iou"] == pytest.approx(1)
        assert sum(found["per_scene"]) / len(found["per_scene"]) == pytest.approx(0.5)


def test_perfect_twin_predictions():
    source = source_of("twins_tags")
    labels = source.scenes("test").rendered.labels.long()
    swap = torch.tensor([0, 1, 2, 3, 4, 11, 6, 7, 12, 13, 10, 5, 8, 9])
    model = Prepared("twins_tags")
    model.answers = [labels, swap[labels], *[labels] * 8]
    found = measure_twins(model, source)
    assert found["twin_iou"] == pytest.approx(1)
    assert [kind["tags"] for kind in found["noise"]][-2:] == ["missing", "shuffled"]


def test_binding_accuracy_by_majority_of_pixels():
    source = source_of(BINDING_TARGET)
    rendered = source.scenes("test").rendered
    guess = rendered.labels.long().clone()
    right = count = 0
    for scene in range(6):  # every second object mostly wrong, all objects slightly wrong
        for slot, label in enumerate(slot_labels(rendered.graph)[scene].tolist()):
            places = (rendered.instances[scene] == slot + 1).nonzero()
            if len(places) < 10:
                continue
            share = 0.6 if slot % 2 else 0.3
            wrong = places[: int(share * len(places))]
            guess[scene, wrong[:, 0], wrong[:, 1]] = 2 + (label - 1) % 10
            count, right = count + 1, right + (slot % 2 == 0)
    model = Prepared(BINDING_TARGET)
    model.answers = [guess] * len(PHRASES)
    found = measure_binding(model, source)
    assert 0 < right < count
    assert all(found["accuracy"][str(n)] == pytest.approx(right / count) for n in PHRASES)


def test_iou_of_camouflaged_objects():
    source = source_of("depth_stem")
    rendered = source.scenes("test").rendered
    labels = rendered.labels.long()
    kinds = torch.cat([torch.tensor([-1]), rendered.graph.kind])[rendered.instances.long()]
    hidden = kinds == CAMOUFLAGED
    assert hidden.any()
    guess = torch.where(hidden, 0, labels)  # misses the camouflaged object
    painted = (labels < 2) & (torch.rand(labels.shape) < 0.01)
    half = torch.where(painted, 3, labels)  # finds all of it, plus false positives
    model = Prepared("depth_stem")
    model.answers = [labels, guess, half]
    found = measure_depth(model, source)
    assert found["own"]["iou"] == 1
    assert found["zeroed"]["iou"] == 0
    expected = int(hidden.sum()) / int(hidden.sum() + painted.sum())
    assert found["shuffled"]["iou"] == pytest.approx(expected)
    assert found["shuffled"]["recall"] == 1


def test_depth_is_own_zeroed_or_of_the_next_scene():
    """Own depth, zeros, or that of the next scene; the image is unchanged."""
    source = source_of("depth_stem")
    shown: list[tuple[torch.Tensor, ...]] = []

    class Watched(Prepared):
        def forward(self, *inputs, **options) -> PixelsOutput:
            shown.append(inputs[:3])
            return super().forward(*inputs, **options)

    model = Watched("depth_stem")
    model.answers = [source.scenes("test").rendered.labels] * 3
    measure_depth(model, source)
    own, zeroed, shuffled = shown
    assert own[2].all()
    assert not zeroed[2].any()
    assert torch.equal(shuffled[1], own[1].roll(-1, 0))
    assert not torch.equal(shuffled[1], own[1])
    assert all(torch.equal(one[0], own[0]) for one in shown)


@pytest.mark.parametrize("part", ["twins", "binding"])
def test_control_words_are_the_same_for_every_image(part: str):
    says = {"twins": "twins_tags", "binding": BINDING_TARGET}[part]
    for name in (says, f"{part}_constant_words", f"{part}_learned_tokens"):
        run = QUICK.run(name, 0)
        count = VARIANTS[name].learned_tokens
        source = (LearnedTokensTask(run, count) if count else PixelsTask(run)).source
        assert isinstance(source, SceneSource)
        for provenance in ("predicted", "oracle"):
            text = source.words(source.scenes("test"), torch.arange(4), provenance, 16)
            assert text is not None
            vectors = torch.cat((text.embeddings, text.mask[..., None]), -1)
            assert torch.equal(vectors, vectors[:1].expand_as(vectors)) is (name != says)
    for name in (f"{part}_no_words", f"{part}_more_parameters"):
        assert not QUICK.run(name, 0).guided


def test_runs_are_cached_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = QUICK.replace({"parts": ("depth",), "seeds": (0,)})
    reports = []
    first = run_study(config, tmp_path, report=lambda *report: reports.append(report))
    assert [number for number, _ in reports] == [1, 2, 3]
    assert first["missing"] == []
    monkeypatch.setattr(
        "benchmarks.pixels.study.fit", lambda *_, **__: pytest.fail("trained again")
    )
    assert run_study(config, tmp_path) == first
    stored = tmp_path / "depth_stem_0" / RESULT  # saved before a setting was added
    found = json.loads(stored.read_text())
    del found["config"]["word_dropout"], found["config"]["head"]["bases_seed"]
    stored.write_text(json.dumps(found))
    assert run_study(config, tmp_path) == first
    changed = config.replace({"steps": 1})
    with pytest.raises(BaseException, match=r"trained again|another config"):
        run_variant(changed, tmp_path, "depth_stem", 0)


def test_missing_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """If time runs out or a training diverges, the other runs are reported."""
    config = QUICK.replace({"parts": ("depth",), "seeds": (0,)})
    nothing = run_study(config, tmp_path, minutes=0.0)
    assert [row["status"] for row in nothing["targets"]] == ["not run"] * 2
    assert {row["why"] for row in nothing["missing"]} == {"out of time"}
    run_variant(config, tmp_path, "depth_stem", 0)

    def diverges(*_: object, **__: object) -> None:
        raise EligoError("not finite")

    monkeypatch.setattr("benchmarks.pixels.study.fit", diverges)
    some = run_study(config, tmp_path)
    assert [row["variant"] for row in some["depth"]] == ["depth_stem"]
    assert [row["why"] for row in some["missing"]] == ["not finite"] * 2
    assert [row["status"] for row in some["targets"]] == ["not run"] * 2


def test_targets_of_the_twins_part():
    def twins(iou: float, merged: float, whole: float, missing: float) -> dict:
        noise = [{"tags": "all", "twin_iou": iou, "other_iou": whole}]
        noise.append({"tags": "missing", "twin_iou": iou, "other_iou": missing})
        return fake(
            {"twin_iou": iou, "merged_iou": merged, "other_iou": whole, "noise": noise,
             "per_scene": [iou] * 2}
        )  # fmt: skip

    results = {
        "twins_no_words": {0: twins(0.33, 0.99, 0.9, 0.9), 1: twins(0.35, 0.99, 0.9, 0.9)},
        "twins_tags": {0: twins(0.95, 0.98, 0.9, 0.89), 1: twins(0.93, 0.98, 0.9, 0.88)},
    }
    rows = summarise(QUICK.replace({"parts": ("twins",)}), results)["targets"]
    assert [row["status"] for row in rows[:3]] == ["not reached", "reached", "reached"]
    assert [row["found"] for row in rows[:3]] == pytest.approx([0.34, 0.94 / 0.98, 1.5])
    assert [row["seeds"] for row in rows[:3]] == [2, 2, 2]


def test_control_target_uses_the_whole_interval():
    """A small mean difference with a wide interval does not reach the target."""
    accuracy = dict.fromkeys(map(str, PHRASES), 0.1)

    def binding(*per_scene: float) -> dict:
        return fake({"accuracy": accuracy, "per_scene": list(per_scene)})

    results = {
        "binding_no_words": {0: binding(0.1, 0.1, 0.1, 0.1)},
        "binding_constant_words": {0: binding(0.6, -0.4, 0.6, -0.4)},
        "binding_learned_tokens": {0: binding(0.12, 0.12, 0.12, 0.12)},
    }
    rows = summarise(QUICK.replace({"parts": ("binding",)}), results)
    points = {row["variant"]: row["points"] for row in rows["differences"]}
    assert abs(points["binding_constant_words"]) < 1e-6
    met = {
        row["target"].split()[1]: row["status"]
        for row in rows["targets"]
        if row["target"][0] == "C"
    }
    assert met["binding_constant_words"] == "not reached"
    assert met["binding_learned_tokens"] == "reached"


def test_best_checkpoint_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    weights: dict[str, torch.Tensor] = {}
    monkeypatch.setitem(
        MEASURES, "depth", lambda model, _: weights.update(model.state_dict()) or {}
    )
    best = fit

    def first_is_best(task: PixelsTask, *args, **options):
        scores = iter((2.0, 1.0, 0.0))
        monkeypatch.setattr(task, "evaluate", lambda: {"miou": next(scores)})
        return best(task, *args, **options)

    monkeypatch.setattr("benchmarks.pixels.study.fit", first_is_best)
    config = QUICK.replace({"steps": 2, "evaluations": 2})
    found = run_variant(config, tmp_path, "depth_stem", 0)
    assert found["best_step"] == 1
    stored = load_file(tmp_path / "depth_stem_0" / "best" / "model.safetensors")
    last = load_file(tmp_path / "depth_stem_0" / "last" / "model.safetensors")
    assert all(torch.equal(weights[name], value) for name, value in stored.items())
    assert any(not torch.equal(weights[name], value) for name, value in last.items())


def fake(measured: dict) -> dict:
    return {"measured": measured, "parameters": 1, "seconds": {"train": 1.0},
            "made": {"hardware": "a test"}}  # fmt: skip


def test_targets_are_reached_at_their_thresholds():
    def depth(own: float, shuffled: float) -> dict:
        rows = {"own": own, "zeroed": 0.0, "shuffled": shuffled}
        return fake({k: {"iou": v, "per_scene": [v, v]} for k, v in rows.items()})

    def binding(*shares: float) -> dict:
        accuracy = dict(zip(map(str, PHRASES), shares, strict=True))
        return fake({"accuracy": accuracy, "per_scene": [shares[-1]] * 2})

    results = {
        "depth_rgb_only": {0: depth(0.1, 0.1)},
        "depth_stem": {0: depth(0.45, 0.2)},
        BINDING_TARGET: {0: binding(0.97, 0.96, 0.95, 0.89)},
        "binding_no_words": {0: binding(0.1, 0.1, 0.1, 0.1)},
        "binding_constant_words": {0: binding(0.1, 0.1, 0.1, 0.12)},
        "binding_learned_tokens": {0: binding(0.1, 0.1, 0.1, 0.14)},
    }
    found = summarise(QUICK, results)
    met = {row["target"]: row["status"] for row in found["targets"]}
    assert [value for name, value in met.items() if name.startswith("G")] == [
        "reached",
        "not reached",
    ]
    assert [value for name, value in met.items() if name.startswith("B")] == [
        "reached",
        "not reached",
    ]
    assert [met[name] for name in met if name.startswith("C: binding")] == [
        "reached", "not reached", "not run"
    ]  # fmt: skip
    others = [name for name in met if name.startswith(("P", "N", "C: twins"))]
    assert len(others) == 6
    assert {met[name] for name in others} == {"not run"}
    assert {row["seeds"] for row in found["targets"]} == {0, 1}
    stem = next(row for row in found["differences"] if row["variant"] == "depth_stem")
    assert stem["points"] == pytest.approx(35)


@pytest.mark.parametrize("name", ["twins_learned_tokens", "twins_no_words", BINDING_TARGET])
def test_variants_of_every_kind_run(name: str, tmp_path: Path):
    found = run_variant(QUICK, tmp_path, name, 0)
    assert found["best_step"] is not None
    assert found["config"]["train"]["seed"] == 0
    if name != BINDING_TARGET:
        assert len(found["measured"]["noise"]) == 8
        assert 0 <= found["measured"]["twin_iou"] <= 1
    if name == "twins_no_words":  # the words have no effect
        assert len({row["other_iou"] for row in found["measured"]["noise"]}) == 1


def test_learned_tokens_learn():
    task = LearnedTokensTask(QUICK.run("twins_learned_tokens", 0), 14)
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    task.step(batch, Progress(0, 4)).losses["segmentation"].backward()
    assert task.tokens.vectors.grad is not None
    assert task.tokens.vectors.grad.abs().sum() > 0


def test_quick_study_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    args = ["--quick", "--parts", "depth", "--seeds", "0", "--out", str(tmp_path)]
    assert run_script(study.run, [*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [path.name for path in tmp_path.iterdir()] == ["quick"]  # separate from a full run
    file = tmp_path / "quick" / "study.json"
    written = json.loads(file.read_text())
    assert written["targets"] == found["targets"]
    assert len(found["targets"]) == 2
    assert written["quick"] is True
    depth = {name for name in VARIANTS if name.startswith("depth")}
    assert {row["variant"] for row in found["depth"]} == depth
    assert run_script(study.run, args) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [REMARK, f"written: {file}"]


def test_selected_variants_only():
    config = StudyConfig(only=("twins_no_words", "twins_wider_blocks"))
    assert list(config.variants()) == ["twins_no_words", "twins_wider_blocks"]
    assert len(config.jobs()) == 6
    plain, wide = (config.run(name, 0) for name in config.variants())
    different = [key for key in plain.model_dump() if getattr(plain, key) != getattr(wide, key)]
    assert different == ["encoder", "train"]
    sizes = [sum(p.numel() for p in PixelsModel(one).parameters()) for one in (plain, wide)]
    assert sizes[1] > 2 * sizes[0]
    assert not FOLLOW_UPS.keys() & StudyConfig().variants().keys()
    with pytest.raises(ConfigError, match="twins_no_words"):
        StudyConfig().replace({"only": ("twins_no_word",)})
