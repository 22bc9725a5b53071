"""The index against a plain sort, and FAISS against the exact store."""

import pytest
import torch
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.shots.pool.index import PoolIndex


def unit(*shape: int, seed: int = 0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def brute(vectors, queries, k, allowed):
    found = []
    for query in queries:
        scored = sorted(
            ((-float(v @ query), slot) for slot, v in enumerate(vectors) if allowed[slot])
        )
        found.append([slot for _, slot in scored[:k]])
    return found


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_exact_search_equals_brute_force(monkeypatch, chunk: int, precision):
    monkeypatch.setattr("eligo.shots.pool.index._CHUNK", chunk)
    vectors, queries = unit(60, 8), unit(5, 8, seed=1)
    index = PoolIndex.build(vectors, precision=precision)
    stored = vectors.half().float() if precision == "float16" else vectors
    allowed = torch.rand(60) < 0.6
    hits = index.search(queries, 9, allowed)
    assert hits.slots.tolist() == brute(stored, queries, 9, allowed)
    torch.testing.assert_close(hits.scores, (queries @ stored.T).gather(1, hits.slots))
    few = index.search(queries, 9, torch.arange(60) < 4)
    assert few.slots[:, 4:].eq(-1).all()
    assert few.scores[:, 4:].eq(-torch.inf).all()


def test_ties_go_to_the_lowest_slot(monkeypatch):
    monkeypatch.setattr("eligo.shots.pool.index._CHUNK", 4)
    index = PoolIndex.build(torch.eye(8)[:1].expand(11, 8))  # products without rounding
    assert index.search(unit(1, 8, seed=1), 6).slots.tolist() == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("approximate", [False, True])
def test_add_and_remove_without_rebuild(approximate: bool, tmp_path):
    vectors, more, queries = unit(300, 8), unit(40, 8, seed=2), unit(6, 8, seed=1)
    index = PoolIndex.build(vectors, precision="float32", approximate=approximate)
    if approximate:
        index.store.index.nprobe = index.store.index.nlist
    gone = torch.randperm(300)[:25]
    index.remove(gone)
    slots = index.add(more)
    assert len(index) == 315
    assert set(gone.tolist()) < set(slots.tolist())
    whole = torch.zeros(int(slots.max()) + 1, 8)
    whole[:300] = vectors
    whole[slots] = more
    expected = brute(whole, queries, 20, index.alive)
    assert index.search(queries, 20).slots.tolist() == expected
    index.remove(slots[:5])
    index.save(tmp_path / "index")
    again = PoolIndex.load(tmp_path / "index")
    hits, saved = index.search(queries, 20), again.search(queries, 20)
    assert torch.equal(hits.slots, saved.slots)
    assert not torch.isin(hits.slots, slots[:5]).any()
    with pytest.raises(InputError, match="holds nothing"):
        index.remove(slots[:1])


def test_faiss_reaches_calibrated_recall():
    vectors, queries = unit(4000, 16), unit(64, 16, seed=1)
    exact = PoolIndex.build(vectors, precision="float32").search(queries, 32).slots
    index = PoolIndex.build(vectors, approximate=True)
    recalls = []
    for expected in (0.5, 0.9, 0.99):
        reported = index.calibrate(queries, 32, expected)
        found = index.search(queries, 32).slots
        real = sum(
            len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)
        )
        recalls.append(real / exact.numel())
        assert reported >= expected
        assert recalls[-1] == pytest.approx(reported, abs=0.01)  # half precision
    assert recalls[0] < 0.9
    assert index.store.index.nprobe < index.store.index.nlist
    allowed = torch.arange(4000) % 3 == 0
    assert (index.search(queries, 32, allowed).slots % 3 == 0).all()
    assert index.num_bytes < 4000 * (16 * 2 + 9) + 200 * 16 * 4 + 1


def test_index_holds_projected_vectors():
    embeddings, matrix = unit(50, 12), torch.randn(12, 4)
    project = lambda x: F.normalize(x @ matrix, dim=-1)  # noqa: E731
    index = PoolIndex.build(embeddings, project, precision="float32")
    torch.testing.assert_close(index.store.vectors, project(embeddings))


def test_mistakes_are_refused(tmp_path):
    with pytest.raises(InputError, match="too few"):
        PoolIndex.build(unit(3, 8), approximate=True)
    with pytest.raises(InputError, match="expected >= 1"):
        PoolIndex.build(unit(3, 8)).search(unit(1, 8), 0)
    with pytest.raises(InputError, match="build it"):
        PoolIndex.load(tmp_path)
