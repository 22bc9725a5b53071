"""What selectors can learn: one without a state is perfect only where examples do not interact."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from benchmarks.shots.analytic_utilities import AnalyticUtility
from eligo.shots import (
    BeamOracle,
    FitConfig,
    LearnedSelector,
    PointerSelectorV1Config,
    Pool,
    Query,
    Record,
    StaticOracle,
)  # fmt: skip
from eligo.shots.training.task import fit_pointer

DIM, CANDIDATES, SHOTS = 16, 10, 3
ALL = 10_000  # a beam that forgets nothing


def clustered_pool() -> Pool:
    generator = torch.Generator().manual_seed(0)
    centres = 0.8 * torch.randn(6, DIM, generator=generator).repeat(40, 1)
    vectors = torch.randn(240, DIM, generator=generator) + centres
    return Pool([f"d{i}" for i in range(240)], vectors)


def draw_tasks(pool: Pool, count: int):
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        query = Query(f"q{number}", torch.randn(DIM, generator=generator))
        rows = torch.randperm(240, generator=generator)[:CANDIDATES]
        yield query, pool.names(rows)


def value(utility: AnalyticUtility, query: Query, picks: list[str]) -> float:
    return float(utility.values(query, tuple(picks[:-1]), picks[-1:])[0])


@pytest.mark.parametrize("kind", ["relevance", "redundancy", "order"])
def test_values_are_the_formulas(kind):
    pool = clustered_pool()
    utility, (query, names) = AnalyticUtility(pool, kind), next(draw_tasks(pool, 1))
    for picks in itertools.permutations(names[:4], 3):
        vectors = [pool.vectors[int(pool.rows([name])[0])] for name in picks]
        relevance = [float(v @ F.normalize(query.vector, dim=0)) for v in vectors]
        expected = sum(relevance)
        if kind == "redundancy":
            expected -= 0.7 * sum(float(a @ b) for a, b in itertools.combinations(vectors, 2))
        if kind == "order":
            expected = sum((1 - 0.3 * i) * r for i, r in enumerate(relevance))
            pairs = itertools.pairwise(vectors)
            expected += 1.6 * sum(float(a[:8] @ b[8:]) for a, b in pairs)
        assert value(utility, query, list(picks)) == pytest.approx(expected, abs=1e-5)
    oracle = BeamOracle(utility, beam=ALL).fit([], pool).select(query, 3, candidates=names[:6])
    best = max(value(utility, query, list(p)) for p in itertools.permutations(names[:6], 3))
    assert value(utility, query, pool.picked(oracle)) == pytest.approx(best)


@pytest.mark.parametrize("kind", ["relevance", "redundancy", "order"])
def test_regret_of_static_and_stateful(kind):
    pool = clustered_pool()
    utility = AnalyticUtility(pool, kind)
    teacher = BeamOracle(utility).fit([], pool)
    records = [
        Record(query, pool.picked(teacher.select(query, SHOTS, candidates=names)), names)
        for query, names in draw_tasks(pool, 500)
    ]
    held_out = records[400:]

    def regret(picks_of) -> float:
        lost = 0.0
        for record in held_out:
            best, found = record.picks, picks_of(record)
            lost += value(utility, record.query, best) - value(utility, record.query, found)
        return lost / len(held_out)

    def learned(state: str) -> float:
        config = PointerSelectorV1Config(d_model=DIM, hidden_dim=32, dropout=0.0, state=state)
        settings = FitConfig(min_steps=250, num_epochs=1, lr=5e-3, patience=20)
        model = fit_pointer(config, records[:400], pool, settings)
        return regret(selected(LearnedSelector.of(model, pool)))

    def selected(selector):
        return lambda r: pool.picked(selector.select(r.query, SHOTS, candidates=r.candidates))

    anything = regret(lambda r: list(r.candidates[:SHOTS]))
    single = regret(selected(StaticOracle(utility).fit([], pool)))
    if kind == "relevance":
        assert single == pytest.approx(0, abs=1e-5)
        assert learned("none") < 0.1 * anything
    else:
        static, stateful = learned("none"), learned("gru")
        assert static > 0.25 * anything
        assert stateful < 0.6 * static
        assert stateful < single  # a perfect ranker of single examples
