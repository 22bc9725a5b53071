"""Speed suites: both implementations agree, and the command keeps earlier results."""

import json
import sys
from itertools import count
from pathlib import Path

import pytest
import torch

from benchmarks.shots import index_speed, model_speed, speed
from benchmarks.shots.model_speed import sample_loop, static_scores, step_loop
from eligo.cli import run_script
from eligo.shots import (
    FitConfig,
    PointerSelectorV1Config,
    PointerSelectorV3Config,
    build_model,
    embed_texts,
)
from eligo.shots.model.losses import available, plackett_luce_steps


def test_plain_loops_give_the_same_losses():
    torch.manual_seed(0)
    query, candidates = torch.randn(4, 12), torch.randn(4, 9, 12)
    labels = torch.rand(4, 9).argsort(1)[:, :5]
    size = {"d_model": 12, "hidden_dim": 8, "dropout": 0.0, "residual": False}
    v1 = build_model(PointerSelectorV1Config(**size))
    found = v1(query, candidates, labels)["loss"]
    torch.testing.assert_close(step_loop(static_scores(v1, query, candidates), labels, 0.2), found)
    v3 = build_model(PointerSelectorV3Config(**size, ranking_loss_type="pairwise", margin=3.0))
    rows = torch.tensor([0, 0, 2, 3])
    found = v3(query, candidates, labels, beam_scores=torch.randn(4, 5), rows=rows)["loss"]
    scores = static_scores(v3, query, candidates)[rows]
    slow = sample_loop(scores, labels, smoothing=0.2, margin=3.0, weight=0.1)
    torch.testing.assert_close(slow, found)


@pytest.mark.parametrize("spread", [1.0, 300.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_closed_form_gradient_matches_autograd(smoothing: float, spread: float):
    """Also for scores so far apart that exp of a difference is 0 or infinite."""
    torch.manual_seed(0)
    scores = (spread * torch.randn(30, 7)).requires_grad_()
    mask = torch.rand(30, 7) < 0.8
    picks = torch.rand(30, 7).argsort(1)[:, :4]
    picks = torch.where(mask.gather(1, picks) & (torch.rand(30, 4) < 0.8), picks, -1)
    weights = torch.randn(30, 4)
    ours = plackett_luce_steps(scores, picks, available(picks, mask), smoothing)
    (gradient,) = torch.autograd.grad((ours * weights).sum(), scores)
    exact = scores.detach().double().requires_grad_()
    steps = []
    for step, valid in enumerate(available(picks, mask)[:, :-1].unbind(1)):
        log_p = exact.masked_fill(~valid, -1e9).log_softmax(1)
        own = log_p.gather(1, picks[:, step : step + 1].clamp_min(0)).squeeze(1)
        mean = torch.where(valid, log_p, 0.0).sum(1) / valid.sum(1).clamp_min(1)
        loss = -(1 - smoothing) * own - smoothing * mean
        steps.append(torch.where(picks[:, step] < 0, 0.0, loss))
    theirs = torch.stack(steps, 1)
    (expected,) = torch.autograd.grad((theirs * weights).sum(), exact)
    # Precision of a float32 of that size, and of exp of a difference of two.
    known = 4 * torch.finfo(torch.float32).eps * max(1.0, float(scores.detach().abs().max()))
    torch.testing.assert_close(ours.double(), theirs, atol=known, rtol=1e-5)
    torch.testing.assert_close(gradient.double(), expected, atol=known, rtol=1e-5)


@pytest.fixture
def small(monkeypatch):
    sizes = {"BATCH": 4, "BEAMS": 2, "RERANKED": 8, "PICKS": 2, "CANDIDATES": 4}
    for name, size in {**sizes, "WIDTH": 32, "LAYERS": 2}.items():
        monkeypatch.setattr(model_speed, name, size)
    monkeypatch.setattr(index_speed, "FitConfig", lambda **_: FitConfig(min_steps=5, num_epochs=1))
    ticks = count()
    monkeypatch.setattr(model_speed.time, "process_time", lambda: next(ticks))


def test_both_implementations_of_each_suite_agree(small):
    found = model_speed.bench_training(rounds=2)
    assert found["v1_closed_form"]["difference"] < 1e-5
    assert found["v3_pairwise"]["difference"] < 1e-4
    assert model_speed.bench_rerank(rounds=2)["same_picks"]
    assert model_speed.bench_teaching(rounds=3)["difference"] < 1e-4


def test_compare_reports_medians_and_the_lowest_ratio(monkeypatch):
    """Two warm-up rounds are left out."""
    durations = [9, 9, 9, 9, 6, 2, 8, 2, 4, 4]
    readings = iter([reading for end in durations for reading in (0, end)])
    monkeypatch.setattr(model_speed.time, "process_time", lambda: next(readings))
    found = model_speed.compare(lambda: None, lambda: None, "cpu", rounds=3)
    assert found == {"slow_ms": 6000, "fast_ms": 2000, "speedup": 3, "lowest": 1}


def test_index_suite_on_a_small_pool(small):
    found = index_speed.bench_index(3000, 300, num_queries=40, num_records=40, recall=0.95)
    assert found["recall_at_64"] > 0.9
    assert found["lists_looked_at"] <= found["lists"]


def test_command_keeps_the_results_of_other_suites(small, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", speed)  # as `python -m` does
    out = tmp_path / "speed.json"
    args = ["--rounds", "1", "--out", str(out)]
    assert run_script(speed.run, ["--suite", "train", *args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["train, cpu"]
    assert found["command"].startswith("python -m benchmarks.shots.speed")
    assert set(found["results"]) == {"v1_closed_form", "v3_pairwise"}
    assert set(found["results"]["v1_closed_form"]) == {"loss", "step", "difference"}
    assert run_script(speed.run, ["--suite", "rerank", *args]) == 0
    assert "speedup" in capsys.readouterr().out
    assert set(json.loads(out.read_text())) == {"train, cpu", "rerank, cpu"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds: got 0"),
        (["--candidates", "10"], "--candidates: got 10, expected at least"),
        (["--suite", "no"], "--suite"),
        (["--device", "abacus"], "device: got 'abacus'"),
    ],
)
def test_invalid_flags_are_refused(flags: list[str], message: str, capsys):
    assert run_script(speed.run, flags) == 2
    assert message in capsys.readouterr().err


def test_perturbed_texts_do_not_cluster():
    texts = index_speed.dense_captions("train", 50)
    assert len(set(texts)) == 50
    assert index_speed.dense_captions("train", 3, start=10) == texts[10:13]
    vectors = embed_texts(texts)
    distance = index_speed.nearest_distance(vectors)
    plain = torch.cdist(vectors, vectors) + 9 * torch.eye(50)
    assert distance == pytest.approx(float(plain.amin(1).median()), abs=1e-3)
    many = torch.cat(list(index_speed.perturbed(vectors, 120, distance, chunk=32)))
    assert many.shape == (120, 768)
    # A copy is as far from its text as texts are from each other (up to the normalisation).
    assert (many[:50] - vectors).norm(dim=1).median() > 0.85 * distance
