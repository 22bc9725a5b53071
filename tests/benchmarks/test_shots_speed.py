"""What is measured is what is claimed: the plain ways give the models' own numbers."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.shots.search_speed import bench_index
from benchmarks.shots.slow import sample_loop, static_scores, step_loop
from benchmarks.shots.teaching_speed import bench_teaching
from benchmarks.shots.texts import captions, nearest_distance, perturbed
from benchmarks.shots.training_speed import bench_rerank, bench_training
from eligo.shots import PointerSelectorV1Config, PointerSelectorV3Config, build_model
from eligo.shots.model.losses import available, plackett_luce_steps


def test_the_plain_ways_are_the_same_losses():
    torch.manual_seed(0)
    query, candidates = torch.randn(4, 12), torch.randn(4, 9, 12)
    labels = torch.rand(4, 9).argsort(1)[:, :5]
    size = {"d_model": 12, "hidden_dim": 8, "dropout": 0.0}
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
def test_the_written_gradient_is_the_traced_one(smoothing: float, spread: float):
    """Also where scores lie so far apart that exp of their differences is 0 or infinite."""
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
    # A float32 of that size is known to so much, and so is exp of a difference of two.
    known = 4 * torch.finfo(torch.float32).eps * max(1.0, float(scores.detach().abs().max()))
    torch.testing.assert_close(ours.double(), theirs, atol=known, rtol=1e-5)
    torch.testing.assert_close(gradient.double(), expected, atol=known, rtol=1e-5)


class OperatorClock(TorchDispatchMode):
    """Ticks at every operator: a clock that other programs on the machine do not disturb."""

    ticks = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ticks += 1
        return func(*args, **(kwargs or {}))


def test_suites_run(monkeypatch):
    for name, size in (("BATCH", 8), ("BEAMS", 2), ("RERANKED", 16)):
        monkeypatch.setattr(f"benchmarks.shots.training_speed.{name}", size)
    with OperatorClock() as clock, monkeypatch.context() as patch:
        patch.setattr("benchmarks.shots.clock.time.process_time", lambda: clock.ticks)
        found = bench_training(rounds=2)
    assert found["v1_closed_form"]["difference"] < 1e-5
    assert found["v3_pairwise"]["difference"] < 1e-4
    assert found["v3_pairwise"]["step"]["speedup"] > 3
    assert bench_rerank(rounds=2)["same_picks"]


def test_sharing_gives_the_same_scores(monkeypatch):
    for name, size in (("PICKS", 2), ("CANDIDATES", 4), ("_WIDTH", 32), ("_LAYERS", 2)):
        monkeypatch.setattr(f"benchmarks.shots.teaching_speed.{name}", size)
    assert bench_teaching(rounds=3)["difference"] < 1e-4


def test_index_suite_on_a_small_pool(monkeypatch):
    monkeypatch.setattr("benchmarks.shots.texts.FitConfig", lambda **_: _quick())
    found = bench_index(3000, num_texts=300, num_queries=40, num_records=40, recall=0.95)
    assert found["recall_at_64"] > 0.9
    assert found["lists_looked_at"] <= found["lists"]
    assert found["p50_ms"] > 0


def _quick():
    from eligo.shots import FitConfig

    return FitConfig(min_steps=5, num_epochs=1)


def test_texts_are_real_and_perturbed_ones_are_no_clusters():
    texts = captions("train", 50)
    assert len(set(texts)) == 50
    assert captions("train", 3, start=10) == texts[10:13]
    from eligo.shots import embed_texts

    vectors = embed_texts(texts)
    distance = nearest_distance(vectors)
    plain = torch.cdist(vectors, vectors) + 9 * torch.eye(50)
    assert distance == pytest.approx(float(plain.amin(1).median()), abs=1e-3)
    many = torch.cat(list(perturbed(vectors, 120, distance, chunk=32)))
    assert many.shape == (120, 768)
    # A copy is no nearer to its text than texts are to each other (but for the turn of the norm).
    assert (many[:50] - vectors).norm(dim=1).median() > 0.85 * distance
