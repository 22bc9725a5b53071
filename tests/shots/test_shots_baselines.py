"""Every baseline against brute force, and properties of all selectors."""

import itertools
import math
import re
from collections import Counter

import pytest
import torch

from eligo.errors import InputError
from eligo.shots import (
    BM25,
    DPP,
    KNN,
    MMR,
    BeamOracle,
    BestFixed,
    GreedyOracle,
    Pool,
    Query,
    Random,
    Record,
    StaticOracle,
    UtilityTable,
    ZeroShot,
    beam_search,
    load_selector,
    num_calls,
)  # fmt: skip
from eligo.shots.baselines.mmr import LAMBDAS

WORDS = ["red", "ball", "blue", "box", "green", "cat", "sees", "the"]


def a_pool(size: int = 9, **columns) -> Pool:
    texts = [" ".join(WORDS[(i * k + k) % 8] for k in range(1, 2 + i % 4)) for i in range(size)]
    vectors = torch.randn(size, 5)
    return Pool([f"d{i}" for i in range(size)], vectors, **{"payload": texts, **columns})


def a_query(name: str = "q", **columns) -> Query:
    return Query(name, torch.randn(5), **{"text": "the red cat", **columns})


def a_table(pool: Pool, queries, shots: int) -> UtilityTable:
    """A random value for every sequence."""
    generator = torch.Generator().manual_seed(0)
    table = {
        query.id: {
            ids: float(torch.rand((), generator=generator)) + 0.1 * len(ids)
            for length in range(1, shots + 1)
            for ids in itertools.permutations(pool.ids, length)
        }
        for query in queries
    }
    return UtilityTable(table)


def test_knn_matches_brute_force():
    pool, query = a_pool(), a_query()
    cosines = [float(torch.cosine_similarity(v, query.vector, dim=0)) for v in pool.vectors]
    expected = sorted(range(9), key=lambda i: -cosines[i])[:4]
    selection = KNN().fit([], pool).select(query, 4)
    assert selection.indices.tolist() == expected
    torch.testing.assert_close(selection.scores, torch.tensor(cosines))


@pytest.mark.parametrize("balance", [0.0, 0.3, 0.7, 1.0])
def test_mmr_matches_brute_force(balance: float):
    pool, query = a_pool(), a_query()
    v = pool.vectors
    picks: list[int] = []
    for _ in range(5):

        def value(i: int) -> float:
            relevance = float(v[i] @ query.vector)
            if not picks:
                return relevance
            return balance * relevance - (1 - balance) * max(float(v[i] @ v[j]) for j in picks)

        picks.append(max((i for i in range(9) if i not in picks), key=value))
    assert MMR(balance).fit([], pool).select(query, 5).indices.tolist() == picks


def test_mmr_is_tuned_on_records():
    pool, queries = a_pool(30), [a_query(f"q{i}") for i in range(12)]
    true = MMR(0.4).fit([], pool)
    records = [Record(q, pool.picked(true.select(q, 4))) for q in queries]
    assert MMR().fit(records, pool).balance in [x for x in LAMBDAS if 0.2 <= x <= 0.6]
    with pytest.raises(InputError, match="no records"):
        MMR().fit([], pool)


def test_dpp_matches_brute_force():
    """Greedy by determinants, with the kernel of OpenICL."""
    pool, query = a_pool(), a_query()
    v = pool.vectors.double()
    relevance = ((v @ query.vector.double() + 1) / 2 / (2 * 0.5)).exp()
    kernel = relevance[:, None] * ((v @ v.T + 1) / 2) * relevance
    near = sorted(range(9), key=lambda i: -float(v[i] @ query.vector.double()))[:7]
    picks: list[int] = []
    for _ in range(4):
        rest = [i for i in near if i not in picks]
        picks.append(max(rest, key=lambda i: float(kernel[[*picks, i]][:, [*picks, i]].det())))
    assert DPP(top=7, scale=0.5).fit([], pool).select(query, 4).indices.tolist() == picks
    assert (DPP().top, DPP().scale) == (100, 0.1)  # as in OpenICL


def test_bm25_matches_brute_force():
    pool, query = a_pool(), a_query()
    documents = [text.split() for text in pool.texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        count, total = Counter(words), 0.0
        for word in query.text.split():
            holders = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
            total += idf * count[word] / (count[word] + 1.5 * (0.25 + 0.75 * len(words) / mean))
        scores.append(total)
    selector = BM25().fit([], pool)
    selection = selector.select(query, 9)
    torch.testing.assert_close(selection.scores, torch.tensor(scores))
    assert selection.indices.tolist() == sorted(range(9), key=lambda i: -scores[i])
    selector.add(["new"], torch.randn(1, 5), payload=["the red cat"])
    assert selector.pool.picked(selector.select(query, 1)) == ["new"]
    with pytest.raises(InputError, match="has no text"):
        selector.select(Query("q", torch.randn(5)), 1)


def test_random_depends_only_on_seed_and_query():
    pool = a_pool(20)
    one = Random(3).fit([], pool)
    picks = {n: one.select(a_query(f"q{n}"), 3).indices.tolist() for n in range(30)}
    again = Random(3).fit([], pool)
    for n in reversed(range(30)):
        assert again.select(a_query(f"q{n}"), 3).indices.tolist() == picks[n]
    assert Random(4).fit([], pool).select(a_query("q0"), 3).indices.tolist() != picks[0]
    assert len({i for found in picks.values() for i in found}) > 15
    # Excluded examples do not change the order of the others.
    gone = pool.ids[picks[0][0]]
    assert one.select(a_query("q0"), 2, exclude=[gone]).indices.tolist() == picks[0][1:]


def test_best_fixed_matches_brute_force():
    pool, queries = a_pool(5), [a_query(f"q{i}") for i in range(4)]
    table = a_table(pool, queries, 3)
    fixed = BestFixed(table, length=3).fit([Record(q, []) for q in queries], pool)
    prefix: tuple[str, ...] = ()
    for _ in range(3):
        rest = [name for name in pool.ids if name not in prefix]
        prefix = (
            *prefix,
            max(rest, key=lambda n: sum(table.table[q.id][(*prefix, n)] for q in queries)),
        )
    assert pool.picked(fixed.select(a_query("new"), 3)) == list(prefix)
    assert len(pool.picked(fixed.select(a_query("new"), 5))) == 5
    shown = pool.picked(fixed.select(a_query("new"), 2, exclude=[prefix[0]]))
    assert shown == list(prefix[1:])


def test_best_fixed_per_domain(tmp_path):
    pool = a_pool(6, domains=["x", "y"] * 3)
    queries = [a_query(f"q{i}", domain="xy"[i % 2]) for i in range(4)]
    table = a_table(pool, queries, 2)
    fixed = BestFixed(table, length=2).fit([Record(q, []) for q in queries], pool)
    fixed.save(tmp_path)
    for selector in (fixed, load_selector(tmp_path)):
        for domain, start in (("x", 0), ("y", 1)):
            picks = selector.select(a_query("new", domain=domain), 2).indices
            assert all(row % 2 == start for row in picks.tolist())
    with pytest.raises(InputError, match="domain 'z'"):
        fixed.select(a_query("new", domain="z"), 1)


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_oracles_match_brute_force(shots: int):
    pool, query = a_pool(6), a_query()
    table = a_table(pool, [query], 3)
    values = table.table[query.id]

    def value(selector) -> float:
        return values[tuple(pool.picked(selector.fit([], pool).select(query, shots)))]

    best = max(itertools.permutations(pool.ids, shots), key=lambda ids: values[ids])
    assert value(BeamOracle(table, beam=200)) == values[best]
    static = StaticOracle(table).fit([], pool).select(query, shots)
    assert pool.picked(static) == sorted(pool.ids, key=lambda n: -values[(n,)])[:shots]
    prefix: tuple[str, ...] = ()
    for _ in range(shots):
        rest = [name for name in pool.ids if name not in prefix]
        prefix = (*prefix, max(rest, key=lambda n: values[(*prefix, n)]))
    assert value(GreedyOracle(table)) == values[prefix]
    with pytest.raises(InputError, match="an oracle uses the answers"):
        GreedyOracle(table).fit([], pool).save("nowhere")


@pytest.mark.parametrize(("pool", "shots", "beam"), [(6, 3, 2), (4, 6, 5), (3, 2, 100), (0, 2, 1)])
def test_beam_search_makes_num_calls(pool: int, shots: int, beam: int):
    scored = []

    def extend(prefix, candidates):
        scored.extend((*prefix, c) for c in candidates)
        return torch.tensor([hash((*prefix, c)) % 101 / 7 for c in candidates])

    found = beam_search(extend, pool, shots, beam)
    assert len(scored) + 1 == num_calls(pool, shots, beam)
    assert len(scored) == sum(int((~s.values.isnan()).sum()) for s in found.scored)
    assert found.beams == sorted(found.beams, key=lambda b: -b.value)
    for each in found.beams:
        assert len(set(each.picks)) == len(each.picks) == min(shots, pool)
    assert num_calls(32, 6, 5) == 758


def test_beams_are_ranked_by_the_value_of_the_list():
    """A weak first pick with a large last gain must not win."""
    values = {(0,): 10.0, (1,): 0.0, (0, 1): 10.5, (1, 0): 9.0}
    found = beam_search(
        lambda prefix, rest: torch.tensor([values[(*prefix, c)] for c in rest]), 2, 2, 2
    )
    assert found.beams[0].picks == (0, 1)
    assert found.beams[0].step_values == (10.0, 10.5)


# All selectors ---------------------------------------------------------------------------------


def all_selectors(pool: Pool):
    queries = [a_query(f"t{i}", domain="x") for i in range(3)]
    table = a_table(pool, [*queries, a_query()], 2)
    records = [Record(q, []) for q in queries]
    for selector in (
        ZeroShot(), Random(), BestFixed(table, length=2), KNN(), MMR(0.5), DPP(), BM25(),
        StaticOracle(table), GreedyOracle(table), BeamOracle(table),
    ):  # fmt: skip
        yield selector.fit(records, pool)


def test_excluded_and_given_candidates_and_padding():
    pool = a_pool(6, groups=["g", None, None, None, None, "g"], domains=["x"] * 5 + ["x"])
    query = a_query(group="g", domain="x")
    for selector in all_selectors(pool):
        selection = selector.select(query, 2, exclude=["d1"])
        if selector.kind == "zero_shot":
            assert selection.indices.tolist() == [-1, -1]
            continue
        assert set(selection.indices.tolist()) <= {2, 3, 4}
        assert selection.mask.tolist() == [False, False, True, True, True, False]
        few = selector.select(query, 4, candidates=["d3"])
        assert few.indices.tolist() == [3, -1, -1, -1]
        assert few.num_kept == 1
        assert selector.select(query, 2, candidates=[]).num_kept == 0
        assert selector.select(query, 0).indices.shape == (0,)
        itself = Query("d2", torch.randn(5), domain="x", text="red")
        if not selector.sees_answer:
            assert 2 not in selector.select(itself, 6).indices.tolist()


def test_token_budget_takes_the_next_best_that_fits():
    pool, query = a_pool(token_costs=[4, 9, 2, 5, 1, 3, 7, 2, 6]), a_query()
    knn = KNN().fit([], pool)
    ranking = knn.select(query, 9).indices.tolist()
    for budget in range(20):
        expected: list[int] = []
        for row in ranking:
            if len(expected) < 3 and sum(pool.token_costs[i] for i in [*expected, row]) <= budget:
                expected.append(row)
        picks = knn.select(query, 3, token_budget=budget).indices.tolist()
        assert [row for row in picks if row >= 0] == expected


@pytest.mark.parametrize(
    "selector", [ZeroShot(), Random(7), KNN(), MMR(0.25), DPP(5, 0.2), BM25(1.2, 0.5)]
)
def test_save_load_add_remove(selector, tmp_path):
    pool, query = a_pool(8), a_query()
    selector.fit([], pool)
    selector.add(["new"], query.embeddings[None], payload=["the red cat"])
    selector.remove(["d0", "d3"])
    assert len(selector.pool) == 7
    expected = selector.select(query, 3)
    if selector.kind in ("knn", "bm25"):
        assert selector.pool.picked(expected)[0] == "new"
    selector.save(tmp_path / "saved")
    again = type(selector).load(tmp_path / "saved")
    found = again.select(query, 3)
    assert torch.equal(found.indices, expected.indices)
    assert again._settings() == selector._settings()


def test_invalid_input_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no pool yet"):
        KNN().select(a_query(), 1)
    knn = KNN().fit([], a_pool())
    with pytest.raises(InputError, match="got width 4, expected the pool's 5"):
        knn.select(Query("q", torch.randn(4)), 1)
    with pytest.raises(InputError, match="expected at least 0"):
        knn.select(a_query(), -1)
    with pytest.raises(InputError, match="has no 'nobody'"):
        knn.select(a_query(), 1, candidates=["nobody"])
    with pytest.raises(InputError, match="token_costs"):
        knn.select(a_query(), 1, token_budget=5)
    knn.save(tmp_path)
    with pytest.raises(InputError, match="holds a KNN, not a DPP"):
        DPP.load(tmp_path)
    about = tmp_path / "selector.json"
    about.write_text(about.read_text().replace('"knn"', '"none"'))
    with pytest.raises(InputError, match="kind 'none'; expected"):
        load_selector(tmp_path)
    with pytest.raises(InputError, match="there is no such folder"):
        load_selector(tmp_path / "nowhere")
    knn.save(tmp_path)
    a_pool().save(tmp_path / "pool")
    with pytest.raises(InputError, match="its pool has hash"):
        load_selector(tmp_path)
    with pytest.raises(InputError, match=re.escape("has no value")):
        StaticOracle(UtilityTable({"q": {}})).fit([], a_pool()).select(a_query(), 1)
