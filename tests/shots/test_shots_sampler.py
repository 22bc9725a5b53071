"""The candidates of a query."""

import pytest
import torch
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.shots import KNN, MMR, Pool, Query
from eligo.shots.config import SamplerConfig
from eligo.shots.pool.sampler import Sampler

KINDS = ("random", "text", "image", "mix", "nearest_random")


def make_pool(size: int = 40) -> Pool:
    views = {"image": torch.randn(size, 8), "text": torch.randn(size, 8)}
    return Pool(
        [f"d{n}" for n in range(size)], views,
        groups=[f"g{n // 4}" for n in range(size)], domains=[f"{n % 2}" for n in range(size)],
    )  # fmt: skip


def query_of(pool: Pool, row: int) -> Query:
    views = {name: view[row] for name, view in pool.views.items()}
    return Query(pool.ids[row], views, pool.groups[row], pool.domains[row])


@pytest.mark.parametrize("kind", KINDS)
def test_number_of_candidates_without_leaks(kind: str):
    pool = make_pool()
    sampler = Sampler(pool, SamplerConfig(kind=kind, num_candidates=12))
    for row in range(40):
        rows = sampler.rows(query_of(pool, row)).tolist()
        assert len(set(rows)) == 12
        assert row not in rows
        assert all(other // 4 != row // 4 and other % 2 == row % 2 for other in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_depend_only_on_seed_and_query(kind: str):
    pool = make_pool()
    config = SamplerConfig(kind=kind, num_candidates=8)
    first = Sampler(pool, config)
    for row in (3, 4):
        first.rows(query_of(pool, row))
    assert torch.equal(first.rows(query_of(pool, 9)), Sampler(pool, config).rows(query_of(pool, 9)))
    other = Sampler(pool, config.replace({"seed": 1}))
    assert not torch.equal(other.rows(query_of(pool, 9)), first.rows(query_of(pool, 9)))


@pytest.mark.parametrize("view", ["text", "image"])
def test_nearest_equal_brute_force(view: str):
    pool, query = make_pool(), query_of(make_pool(), 0)
    query = query_of(pool, 5)
    rows = Sampler(pool, SamplerConfig(kind=view, num_candidates=5)).rows(query)
    cosines = F.cosine_similarity(pool.views[view], query.views[view][None])
    allowed = pool.allowed(query).nonzero().flatten().tolist()
    best = sorted(allowed, key=lambda row: -float(cosines[row]))[:5]
    assert sorted(rows.tolist()) == sorted(best)
    assert rows.tolist() != best  # the order carries no information


def test_shares_of_the_mix():
    pool = make_pool(80)
    query = query_of(pool, 5)
    rows = set(Sampler(pool, SamplerConfig(kind="mix", num_candidates=12)).rows(query).tolist())
    for view in ("text", "image"):
        near = Sampler(pool, SamplerConfig(kind=view, num_candidates=3)).rows(query).tolist()
        assert set(near) <= rows


def test_max_similarity_leaves_out_near_copies():
    pool = make_pool()
    query = query_of(pool, 5)
    rows = Sampler(pool, SamplerConfig(num_candidates=40, max_similarity=0.1)).rows(query)
    assert (pool.vectors[rows] @ query.vector <= 0.1).all()
    assert 0 < len(rows) < int(pool.allowed(query).sum())


def test_candidates_include_picks():
    pool = make_pool()
    query = query_of(pool, 0)
    sampler = Sampler(pool, SamplerConfig(num_candidates=6))
    names = sampler.with_picks(query, ["d20", "d22"])
    assert len(names) == len(set(names)) == 6
    assert {"d20", "d22"} <= set(names)
    assert names[:2] != ["d20", "d22"]


def test_missing_view_is_refused():
    pool = Pool(["a", "b"], torch.eye(2))
    with pytest.raises(InputError, match="no view text"):
        Sampler(pool, SamplerConfig(kind="text"))


def test_nearest_contains_what_simple_selectors_take_from_the_whole_pool():
    draw = torch.Generator().manual_seed(0)
    pool = Pool([f"d{n}" for n in range(200)], torch.randn(200, 8, generator=draw))
    sampler = Sampler(pool, SamplerConfig(kind="nearest", num_candidates=16))
    for number in range(20):
        query = Query(f"q{number}", torch.randn(8, generator=draw))
        names = sampler.names(query)
        assert len(set(names)) == 16
        for selector, shots in ((KNN(), 12), (MMR(balance=0.5), 4)):
            picked = pool.picked(selector.fit([], pool).select(query, shots))
            assert set(picked) <= set(names)
    assert sampler.names(query) == names  # the same for the same query
    few = Sampler(pool.take(torch.arange(5)), SamplerConfig(kind="nearest", num_candidates=16))
    assert sorted(few.names(query)) == [f"d{n}" for n in range(5)]


def test_default_is_half_near_and_half_random():
    draw = torch.Generator().manual_seed(0)
    pool = Pool([f"d{n}" for n in range(200)], torch.randn(200, 8, generator=draw))
    sampler = Sampler(pool)
    assert (sampler.config.kind, sampler.config.num_candidates) == ("nearest_random", 32)
    others = set()
    for number in range(20):
        query = Query(f"q{number}", torch.randn(8, generator=draw))
        names = set(sampler.names(query))
        assert len(names) == 32
        near = set()
        for selector in (KNN(), MMR(balance=0.5)):
            picked = pool.picked(selector.fit([], pool).select(query, 8))
            assert set(picked) <= names
            near |= set(picked)
        others |= names - near
    assert len(others) > 150  # from the whole pool
    few = Sampler(pool.take(torch.arange(5)))
    assert sorted(few.names(query)) == [f"d{n}" for n in range(5)]
