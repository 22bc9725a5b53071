"""Analytic utilities, and the regret of selectors with and without state on them."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from benchmarks.shots.analytic import (
    CANDIDATES,
    DIM,
    KINDS,
    AnalyticUtility,
    Kind,
    Task,
    clustered_pool,
)
from eligo.shots import (
    BeamOracle,
    FitConfig,
    LearnedSelector,
    PointerSelectorV1Config,
    PoolSelector,
    Query,
    Random,
    Record,
    StaticOracle,
)
from eligo.shots.training.task import fit_pointer

ALL = 10_000  # a beam that keeps every list


def value(utility: AnalyticUtility, query: Query, picks: list[str]) -> float:
    return float(utility.values(query, tuple(picks[:-1]), picks[-1:])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_values_match_the_formulas(kind: Kind):
    pool = clustered_pool()
    utility, query = AnalyticUtility(pool, kind), Query("q", torch.randn(DIM))
    names = pool.names(torch.randperm(len(pool))[:CANDIDATES])
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


@pytest.mark.parametrize("kind", KINDS)
def test_regret_with_and_without_state(kind: Kind):
    pool = clustered_pool()
    task = Task(pool, kind, 500)
    # Without scores: only the best lists.
    records = [Record(r.query, r.picks, r.candidates) for r in task.records(range(500))]
    held_out = records[400:]

    def regret(selector: PoolSelector) -> float:
        return sum(task.regret(selector, held_out)) / len(held_out)

    def learned(state: str) -> float:
        config = PointerSelectorV1Config(d_model=DIM, hidden_dim=32, dropout=0.0, state=state)
        settings = FitConfig(min_steps=80, num_epochs=1, lr=1.5e-2, patience=20)
        return regret(LearnedSelector.of(fit_pointer(config, records[:400], pool, settings), pool))

    chance = regret(Random().fit([], pool))
    single = regret(StaticOracle(task.utility).fit([], pool))
    if kind == "relevance":
        assert single == pytest.approx(0, abs=1e-5)
        assert learned("none") < 0.1 * chance
    else:
        static, stateful = learned("none"), learned("gru")
        assert static > 0.25 * chance
        assert stateful < 0.6 * static
        assert stateful < single  # the best single examples
