"""Search equals exhaustive search: both directions, any shards, any number of candidates."""

import pytest
import torch

from eligo import ops
from eligo.errors import InputError, MissingExtraError, OutputError
from eligo.patches.index import (
    Calibration,
    Hits,
    ScenePictures,
    Searcher,
    TextLines,
    build_index,
    calibrate,
    merge_hits,
)
from eligo.patches.index.entries import fold
from eligo.patches.index.sources import scene_captions
from eligo.patches.kernels.hoist import hoist
from eligo.patches.model.inputs import Images
from eligo.patches.model.retrieval_model import RetrievalModel

COUNT = 23
QUERIES = ("there is a red ball.", "a star is left of a blue box.", "a gem.")


@pytest.fixture(scope="module")
def model() -> RetrievalModel:
    torch.manual_seed(0)
    return RetrievalModel.tiny(kind="paper").eval()


@pytest.fixture(scope="module")
def images(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    build_index(lambda: model, ScenePictures.first(COUNT, 56), folder, shard_size=5)
    return folder


@pytest.fixture(scope="module")
def texts(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text("\n".join(scene_captions(COUNT)))
    source = TextLines.of(folder / "texts.txt")
    build_index(lambda: model, source, folder / "index", shard_size=5, dtype="float32")
    return folder / "index"


def same(got: Hits, expected: Hits) -> None:
    assert got.rows.tolist() == expected.rows.tolist()
    assert torch.equal(got.scores, expected.scores)
    assert torch.equal(got.guesses, expected.guesses)


@pytest.mark.parametrize("text", QUERIES)
def test_reranking_all_equals_exhaustive_search(model, images, text):
    searcher, query = Searcher(model, images), model.text_side([text])
    expected = searcher.search(query, k=10, rerank=None)
    same(searcher.search(query, k=10, rerank=COUNT), expected)
    same(searcher.search(query, k=10, rerank=COUNT + 100), expected)
    # equal to sorting all scores
    scores = searcher.scores(query, torch.arange(COUNT))[:, 0]
    order = scores.argsort(descending=True, stable=True)[:10]
    assert expected.rows.tolist() == order.tolist()
    assert torch.equal(expected.scores, scores[order])


@torch.no_grad()
def guess_by_hand(model, place: int, text: str) -> torch.Tensor:
    """Equation 4 with every patch kept, then the best match of each word and each slot."""
    picture = ScenePictures.first(COUNT, 56).load([place])[0].value
    (slots,) = model.net.aggr_net(model.image_side([picture]).patches)
    words = model.encode_texts([text]).words[0]
    cosines = [[torch.cosine_similarity(s, w, dim=0) for w in words] for s in slots]
    table = torch.tensor(cosines)
    return table.amax(0).mean() + table.amax(1).mean()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["open", "paper"])
@pytest.mark.parametrize("with_dense", [False, True])
def test_slots_equal_those_of_the_network(kind, with_dense):
    """Slots equal the aggregation of all unmasked patches."""
    net = RetrievalModel.tiny(kind=kind, dense=with_dense).eval().net
    patches, cls = torch.randn(2, 16, net.embed_size), torch.randn(2, net.embed_size)
    dense = torch.randn(2, net.embed_size) if with_dense else None
    found = fold(hoist(net.parts(), Images(patches, cls, None, dense)))
    both = (patches, patches) if kind == "paper" and with_dense else (patches,)
    expected = torch.nn.functional.normalize(net.aggr_net(*both), dim=-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    masked = fold(hoist(net.parts(), Images(patches, cls, mask, dense)))
    fewer = None if dense is None else dense[1:]
    cut = fold(hoist(net.parts(), Images(patches[1:, :9], cls[1:], None, fewer)))
    torch.testing.assert_close(masked[1:], cut, atol=1e-5, rtol=0)
    nothing = fold(hoist(net.parts(), Images(patches, cls, torch.zeros_like(mask), dense)))
    assert (nothing == 0).all()


@pytest.mark.parametrize("rerank", [4, 7, 15])
def test_two_stages_by_hand(model, images, rerank):
    searcher, query = Searcher(model, images), model.text_side([QUERIES[1]])
    guesses = torch.stack([guess_by_hand(model, place, QUERIES[1]) for place in range(COUNT)])
    chosen = guesses.argsort(descending=True, stable=True)[:rerank].sort().values
    scores = searcher.scores(query, torch.arange(COUNT))[chosen, 0]
    order = scores.argsort(descending=True, stable=True)[:4]
    found = searcher.search(query, k=4, rerank=rerank)
    assert found.rows.tolist() == chosen[order].tolist()
    torch.testing.assert_close(found.guesses, guesses[chosen[order]], atol=1e-3, rtol=0)


def test_texts_found_by_an_image(model, texts):
    picture = ScenePictures.first(1, 56).load([0])[0].value
    query = model.image_side([picture])
    searcher = Searcher(model, texts)
    expected = searcher.search(query, k=10, rerank=None)
    same(searcher.search(query, k=10, rerank=COUNT), expected)
    with torch.no_grad():
        scores = model.match(query, model.text_side(scene_captions(COUNT)))[0]
    best = ops.top_k(scores, 10)
    torch.testing.assert_close(expected.scores, scores[best], atol=2e-6, rtol=0)
    assert searcher.ids(expected)[0]["text"] == scene_captions(COUNT)[int(best[0])]


def test_texts_in_two_stages_by_hand(model, texts):
    picture = ScenePictures.first(1, 56).load([0])[0].value
    query = model.image_side([picture])
    captions = scene_captions(COUNT)
    guesses = torch.stack([guess_by_hand(model, 0, text) for text in captions])
    found = Searcher(model, texts).candidates(query, 7)
    chosen = guesses.argsort(descending=True, stable=True)[:7].sort().values
    assert found.rows.tolist() == chosen.tolist()
    torch.testing.assert_close(found.guesses, guesses[chosen], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rerank", [6, 12, None])
@pytest.mark.parametrize("parts", [[[0], [1], [2], [3], [4]], [[4, 0], [2, 1], [3]]])
def test_partial_results_merge_exactly(model, images, rerank, parts):
    query = model.text_side([QUERIES[0]])
    expected = Searcher(model, images).search(query, k=6, rerank=rerank)
    found = [
        Searcher(model, images, shards=shards).search(query, k=rerank or COUNT, rerank=rerank)
        for shards in parts
    ]
    same(merge_hits(found, k=6, rerank=rerank), expected)


def test_number_of_shards_does_not_matter(model, images, tmp_path):
    build_index(lambda: model, ScenePictures.first(COUNT, 56), tmp_path, shard_size=COUNT)
    query = model.text_side([QUERIES[0]])
    one, many = (Searcher(model, folder).search(query, k=8) for folder in (tmp_path, images))
    assert one.rows.tolist() == many.rows.tolist()
    torch.testing.assert_close(one.scores, many.scores, atol=3e-3, rtol=0)


@pytest.mark.parametrize("kind", ["open", "late", "global"])
def test_similar_images_by_hand(kind, tmp_path):
    """An image finds images by the cosine of one vector each; itself first."""
    torch.manual_seed(2)
    model = RetrievalModel.tiny(kind=kind).eval()
    scenes = ScenePictures.first(9, 56)
    build_index(lambda: model, scenes, tmp_path, shard_size=4, dtype="float32")
    sides = [model.image_side([item.value]) for item in scenes.load(range(9))]
    if kind == "open":
        vectors = [side.patches[0].mean(0) for side in sides]
    else:
        vectors = [model.net.image_vectors(side)[0] for side in sides]
    table = torch.stack(vectors).detach()
    cosines = torch.cosine_similarity(table[:, None], table[None], dim=-1)
    searcher = Searcher(model, tmp_path)
    for place, side in enumerate(sides):
        hits = searcher.search(side, k=5)
        expected = cosines[place].topk(5)
        assert hits.rows[0] == place
        torch.testing.assert_close(hits.scores, expected.values, atol=1e-5, rtol=0)
        torch.testing.assert_close(cosines[place][hits.rows], expected.values, atol=1e-5, rtol=0)


def test_queries_of_the_wrong_kind_are_refused(model, texts):
    with pytest.raises(InputError, match="is an index of texts, and the query is a text"):
        Searcher(model, texts).search(model.text_side(["a ball."]))


def test_more_results_than_candidates(model, images):
    """`k` beyond `rerank` scores k entries exactly; beyond the index, all of it."""
    searcher, query = Searcher(model, images), model.text_side([QUERIES[0]])
    same(searcher.search(query, k=10, rerank=3), searcher.search(query, k=10, rerank=10))
    everything = searcher.search(query, k=COUNT, rerank=None)
    same(searcher.search(query, k=COUNT + 5, rerank=3), everything)


def test_calibration_matches_brute_force(model, images):
    searcher = Searcher(model, images)
    sides = [model.text_side([text]) for text in QUERIES]
    found = calibrate(searcher, sides, "test")
    together = calibrate(searcher, [model.text_side(list(QUERIES))], "test")
    assert found.queries == together.queries == 3
    assert found.ranks == together.ranks
    for rerank in (10, 12, 17, COUNT):
        hit = 0
        for side in sides:
            expected = searcher.search(side, k=10, rerank=None).rows
            hit += int(torch.isin(searcher.candidates(side, rerank).rows, expected).sum())
        assert found.recall(rerank) == hit / 30
    smallest = found.smallest(0.9)
    assert found.recall(smallest) >= 0.9 > found.recall(smallest - 1)
    assert found.recall(found.smallest(1.0)) == 1.0
    assert Calibration.load(searcher.index) is None
    found.save(searcher.index)
    assert Calibration.load(searcher.index) == found


def test_ties_go_to_the_lowest_index(model, tmp_path):
    class Same(ScenePictures):
        def load(self, places):
            return [super(Same, self).load([0])[0] for _ in places]

    source = ScenePictures.first(9, 56)
    build_index(lambda: model, Same(source.ids, 56), tmp_path, shard_size=4, batch_size=1)
    searcher, query = Searcher(model, tmp_path), model.text_side(["a ball."])
    assert searcher.search(query, k=3, rerank=6).rows.tolist() == [0, 1, 2]
    assert searcher.candidates(query, 6).rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_faiss_gives_the_same_results(model, images, monkeypatch, caplog):
    pytest.importorskip("faiss")
    query = model.text_side([QUERIES[2]])
    exact = Searcher(model, images)
    for _ in range(2):  # built, then loaded
        near = Searcher(model, images, approximate=True)
        got, expected = near.candidates(query, 8), exact.candidates(query, 8)
        assert got.rows.tolist() == expected.rows.tolist()
        torch.testing.assert_close(got.guesses, expected.guesses)
    monkeypatch.setattr("eligo.patches.index.stage1._WIDER", 2)  # means choose 6, slots 3
    vectors = torch.cat([shard.tensors["direction"] for shard in near.index.shards]).float()
    mean = model.encode_texts([QUERIES[2]]).words[0].mean(0)
    first = torch.cosine_similarity(vectors, mean[None]).topk(6).indices
    guesses = {row: guess_by_hand(model, row, QUERIES[2]) for row in first.tolist()}
    best = sorted(sorted(guesses, key=lambda row: -guesses[row])[:3])
    assert near.candidates(query, 3).rows.tolist() == best
    (images / "stage1.faiss").unlink()
    monkeypatch.setattr("eligo.patches.index.stage1._WIDER", 16)
    monkeypatch.setattr("eligo.patches.index.stage1.write_bytes", _refuse)
    near = Searcher(model, images, approximate=True)  # a read-only index
    assert near.candidates(query, 8).rows.tolist() == got.rows.tolist()
    assert "is not stored: " in caplog.text


def _refuse(path, content):
    raise OutputError(f"{path}: cannot be written")


def test_missing_faiss_is_refused(model, images, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"eligo\[faiss\]"):
        Searcher(model, images, approximate=True)
