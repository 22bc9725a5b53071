"""LearnedSelector and its metrics."""

import math
import re

import pytest
import torch

from eligo.errors import InputError
from eligo.shots import (
    KNN,
    FitConfig,
    LearnedSelector,
    PointerSelectorV0Config,
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
    Pool,
    PoolSelector,
    Query,
    Record,
    build_model,
    load_selector,
    metrics,
)  # fmt: skip
from eligo.shots.training.task import split_by_group

SIZE = {"hidden_dim": 16, "K": 16, "dropout": 0.0}
CONFIGS = {
    "v0": PointerSelectorV0Config(**SIZE, num_layers=1, num_heads=2, residual=False),
    "v1": PointerSelectorV1Config(**SIZE),
    "v2_gru": PointerSelectorV2Config(**SIZE, num_heads=2, state="gru"),
    "v3": PointerSelectorV3Config(**SIZE),
}
QUICK = FitConfig(num_epochs=1, min_steps=40, lr=1e-2, patience=50)


def world(num_shots: int = 80, num_queries: int = 120, dim: int = 10):
    """The best examples are near a rotated copy of the query: easy to learn, not by cosine."""
    generator = torch.Generator().manual_seed(0)
    pool = Pool(
        [f"d{i}" for i in range(num_shots)],
        torch.randn(num_shots, dim, generator=generator),
        token_costs=[1 + i % 5 for i in range(num_shots)],
    )
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=generator)).Q
    records = []
    for number in range(num_queries):
        query = Query(f"q{number}", torch.randn(dim, generator=generator))
        values = pool.vectors @ (turn @ query.vector)
        best = values.topk(3).indices
        records.append(Record(query, pool.names(best), scores=values[best].tolist()))
    return pool, records


def recall(selector: PoolSelector, pool: Pool, records) -> float:
    found = [
        len(set(pool.picked(selector.select(record.query, 3))) & set(record.picks))
        for record in records
    ]
    return sum(found) / 3 / len(records)


def test_records_without_picks_are_ignored():
    pool, records = world(20, 12)
    none = [Record(Query(f"n{n}", torch.randn(10)), []) for n in range(40)]
    few = FitConfig(num_epochs=1, min_steps=2)
    selectors = [
        LearnedSelector("v1", fit=few).fit(some, pool) for some in (records, records + none)
    ]
    first, second = (selector.model.input_proj.weight for selector in selectors)
    assert torch.equal(first, second)
    with pytest.raises(InputError, match="got 0 records with picks"):
        LearnedSelector("v1", fit=few).fit(none, pool)


@pytest.mark.parametrize("kind", ["v0", "v2_gru"])
def test_model_without_tower_scores_all_candidates(kind: str):
    """Its projections alone do not rank candidates."""
    pool, records = world(90, 1)
    model = build_model(CONFIGS[kind].replace({"d_model": 10}))
    alone = LearnedSelector.of(model, pool).select(records[0].query, 3)
    assert alone.scores.isfinite().all()
    whole = model.predict(records[0].query.vector[None], pool.vectors[None], shots=3)
    assert alone.indices.tolist() == whole.predictions[0].tolist()
    with pytest.raises(InputError, match=r"has no tower.*give LearnedSelector\.of"):
        _ = LearnedSelector.of(model, pool).index


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_fit_select_save_load_add_remove(kind: str, tmp_path):
    pool, records = world()
    selector = LearnedSelector(CONFIGS[kind], fit=QUICK, rerank=24).fit(records[:90], pool)
    assert isinstance(selector, PoolSelector)
    learned, plain = (recall(s, pool, records[90:]) for s in (selector, KNN().fit([], pool)))
    assert learned > plain + 0.2

    query = records[100].query
    best = selector.pool.picked(selector.select(query, 2))
    selector.remove(best)
    assert not set(best) & set(selector.pool.picked(selector.select(query, 10)))
    rows = pool.rows(best)
    selector.add(["back0", "back1"], pool.vectors[rows], token_costs=[1, 1])
    again = selector.pool.picked(selector.select(query, 2))
    if kind in ("v1", "v3"):  # the others see the whole shortlist, whose order has changed
        assert again == ["back0", "back1"]

    selector.save(tmp_path / "saved")
    loaded = load_selector(tmp_path / "saved")
    for record in records[90:95]:
        found = [s.select(record.query, 4) for s in (selector, loaded)]
        assert torch.equal(found[0].indices, found[1].indices)
        torch.testing.assert_close(found[0].scores, found[1].scores)
    selector.save_pretrained(tmp_path / "half", dtype=torch.float16)
    half = LearnedSelector.from_pretrained(tmp_path / "half")
    files = [tmp_path / name / "pointer.safetensors" for name in ("saved", "half")]
    assert files[1].stat().st_size < 0.7 * files[0].stat().st_size
    query = records[90].query
    scores = [s.select(query, 4).scores for s in (selector, half)]
    torch.testing.assert_close(*scores, atol=0.05, rtol=0.01)


def test_fit_is_deterministic():
    pool, records = world(num_queries=30)
    scores = [
        LearnedSelector(CONFIGS["v1"], fit=QUICK)
        .fit(records, pool)
        .select(records[0].query, 3)
        .scores
        for _ in range(2)
    ]
    assert torch.equal(*scores)


@pytest.mark.parametrize("approximate", [False, True])
def test_shortlist_contains_the_best(approximate: bool, tmp_path):
    """V1 with an index picks what V1 picks from the whole pool."""
    torch.manual_seed(0)
    pool = Pool([f"d{i}" for i in range(500)], torch.randn(500, 10))
    model = build_model(CONFIGS["v1"].replace({"d_model": 10})).eval()
    selector = LearnedSelector.of(model, pool, rerank=20, approximate=approximate)
    queries = [Query(f"q{i}", torch.randn(10)) for i in range(20)]
    selector.select(queries[0], 1)
    if approximate:
        selector.index.store.index.nprobe = selector.index.store.index.nlist
    for query in queries:
        whole = model.predict(query.vector[None], pool.vectors[None], shots=4)
        found = selector.select(query, 4)
        assert found.indices.tolist() == whole.predictions[0].tolist()
        assert found.scores.isfinite().sum() == 20
    ten = list(pool.ids[:400:10])
    few = selector.select(queries[0], 4, candidates=ten)
    assert all(row % 10 == 0 and row < 400 for row in few.indices.tolist())
    gone = pool.picked(selector.select(queries[1], 1))
    selector.remove(gone)
    selector.add(["new"], queries[1].embeddings[None])
    expected = LearnedSelector.of(model, selector.pool, rerank=501).select(queries[1], 5)
    assert selector.select(queries[1], 5).indices.tolist() == expected.indices.tolist()
    selector.save(tmp_path)
    loaded = load_selector(tmp_path)
    assert loaded.select(queries[1], 5).indices.tolist() == expected.indices.tolist()


def test_alternatives_include_the_next_best():
    pool, _ = world()
    model = build_model(CONFIGS["v1"].replace({"d_model": 10})).eval()
    selector, query = LearnedSelector.of(model, pool), Query("q", torch.randn(10))
    steps = selector.alternatives(query, 3, top_k=2)
    picks = pool.picked(selector.select(query, 4))
    assert [step[0][0] for step in steps] == picks[:3]
    assert [step[1][0] for step in steps] == picks[1:4]
    assert all(step[0][1] > step[1][1] for step in steps)


def test_token_budget():
    pool, _ = world()
    model = build_model(CONFIGS["v2_gru"].replace({"d_model": 10})).eval()
    selector = LearnedSelector.of(model, pool, rerank=90)
    for budget in range(8):
        selection = selector.select(Query("q", torch.randn(10)), 4, token_budget=budget)
        costs = [pool.token_costs[row] for row in selection.indices.tolist() if row >= 0]
        assert sum(costs) <= budget
        assert bool(costs) == (budget > 0)


def test_split_by_group():
    records = [Record(Query(f"q{i}", torch.randn(2), group=f"g{i % 7}"), []) for i in range(40)]
    training, validation = split_by_group(records, 0.3, seed=1)
    groups = [{r.query.group for r in part} for part in (training, validation)]
    assert not groups[0] & groups[1]
    assert len(groups[1]) == 2
    assert len(training) + len(validation) == 40


def test_mistakes_are_refused():
    pool, records = world(num_queries=4)
    bare = [Record(r.query, r.picks) for r in records]
    for make, message in [
        (lambda: LearnedSelector("v9"), "got 'v9', expected one of v0, v1, v2, v2_gru, v3"),
        (lambda: LearnedSelector(rerank=0), "got rerank 0"),
        (lambda: LearnedSelector().select(records[0].query, 1), "has no pool yet"),
        (lambda: LearnedSelector().model, "is not fitted yet"),
        (lambda: LearnedSelector("v3").fit(bare, pool), "V3 learns from the teacher's scores"),
        (lambda: LearnedSelector("v1").fit(bare[:1], pool), "expected at least 2 groups"),
    ]:
        with pytest.raises(InputError, match=re.escape(message)):
            make()


# Metrics ---------------------------------------------------------------------------------------


def test_metrics_against_loops():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randint(0, 5, (30, 3, 6), generator=generator).float()
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -torch.inf
    labels = torch.randint(-1, 6, (30, 3), generator=generator)
    scores = torch.randn(30, 6, generator=generator)
    scores[torch.rand(30, 6, generator=generator) < 0.3] = torch.nan
    hits, first, gains = (
        metrics.step_hits(logits, labels, 2),
        metrics.reciprocal_rank(logits[:, 0], labels),
        metrics.ndcg(logits[:, 0], scores, 3),
    )
    std = metrics.logits_std(logits[:, 0])
    for row in range(30):
        ranks = []
        for step in range(3):
            order = sorted(range(6), key=lambda i: (-float(logits[row, step, i]), i))
            order = [i for i in order if logits[row, step, i] > -math.inf]
            label = int(labels[row, step])
            if label >= 0:
                ranks.append(order.index(label) + 1 if label in order else math.inf)
            if step == 0:
                best = order
        expected = sum(rank <= 2 for rank in ranks) / len(ranks) if ranks else math.nan
        assert float(hits[row]) == pytest.approx(expected, nan_ok=True)
        if labels[row, 0] >= 0:
            assert float(first[row]) == pytest.approx(1 / ranks[0])
        else:
            assert first[row].isnan()
        values = torch.tensor([float(logits[row, 0, i]) for i in best])
        if len(best) > 1:
            assert float(std[row]) == pytest.approx(float(values.std(unbiased=False)), abs=1e-5)
        known = [i for i in best if not math.isnan(float(scores[row, i]))]
        if len(known) < 2:
            assert gains[row].isnan()
            continue
        low, high = (f(float(scores[row, i]) for i in known) for f in (min, max))
        gain = {i: (float(scores[row, i]) - low) / (high - low) for i in known}
        ideal = sorted(gain.values(), reverse=True)
        dcg = sum(gain[i] / math.log2(n + 2) for n, i in enumerate(known[:3]))
        top = sum(g / math.log2(n + 2) for n, g in enumerate(ideal[:3]))
        assert float(gains[row]) == pytest.approx(dcg / top, abs=1e-5)


def test_set_recall():
    picks = torch.tensor([[4, 2, -1], [0, 1, 2], [-1, -1, -1]])
    labels = torch.tensor([[2, 3], [-1, 1], [-1, -1]])
    found = metrics.set_recall(picks, labels)
    assert found[:2].tolist() == [0.5, 1.0]
    assert found[2].isnan()
