"""`benchmarks/patches/search.py` at toy sizes."""

import pytest
import torch

from benchmarks.patches import search
from eligo.patches.index import ScenePictures, Searcher, build_index, calibrate
from eligo.patches.index.sources import scene_captions
from eligo.patches.model.retrieval_model import RetrievalModel


@pytest.fixture(scope="module")
def script():
    return search


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return RetrievalModel.tiny().eval()


def test_search_benchmark_runs(script, model, tmp_path):
    found = script.measure(model, 24, 3, tmp_path)
    assert found["stage1"]["queries"] == 3
    for name in ("words_and_slots", "cosine_of_means"):
        recall = found["stage1"][name]["recall_of_top10"]
        mean, low, high = recall["10"]
        assert 0 <= low <= mean <= high < 1
        assert recall["32"] == (1, 1, 1)  # more than there are images
        assert 10 < found["stage1"][name]["rerank_for_99.5_percent"] <= 24
    assert [row["rerank"] for row in found["search"]] == [24, 24]


def test_first_stages_match_plain_implementations(script, model, tmp_path, monkeypatch):
    """`--rerank auto` and a plain sort by the cosine of means."""
    monkeypatch.setattr(script, "AT_ONCE", 2)
    monkeypatch.setattr(script, "recalls", lambda ranks: ranks)
    source = ScenePictures.first(24, 56)
    build_index(lambda: model, source, tmp_path, dtype="float32", shard_size=10)
    searcher, captions = Searcher(model, tmp_path), scene_captions(3)
    found = script.measure_stage1(searcher, captions)
    side = model.text_side(captions)
    ranks = sorted(rank for each in found["words_and_slots"] for rank in each)
    assert tuple(ranks) == calibrate(searcher, [side], "dev").ranks
    patches = model.image_side([item.value for item in source.load(range(24))]).patches
    for text, ranks in enumerate(found["cosine_of_means"]):
        cosines = torch.cosine_similarity(patches.mean(1), side.words.of(text).mean(0)[None])
        order = cosines.sort(descending=True).indices.tolist()
        best = searcher.search(model.text_side([captions[text]]), rerank=None)
        assert ranks == [order.index(row) for row in best.rows.tolist()]


def test_recall_and_smallest_rerank(script):
    found = script.recalls([[0, 1, 2, 9], [3, 10, 11, 63]])
    recall = {rerank: mean for rerank, (mean, _, _) in found["recall_of_top10"].items()}
    expected = {"10": 0.625, "32": 0.875, "64": 1, "128": 1, "256": 1, "512": 1}
    assert recall == pytest.approx(expected)
    assert found["rerank_for_99.5_percent"] == 64
