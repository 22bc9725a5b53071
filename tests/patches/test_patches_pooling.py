"""LearnedTokenPooling: exact counts, unit vectors, nested clusters, files, training."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from benchmarks.patches import pooling as pooling_benchmark
from eligo.patches.index.pooling import cut_tree, ward_tree

pytest.importorskip("sentence_transformers.multi_vector_encoder", reason="needs eligo[pooling]")

from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from eligo.errors import InputError
from eligo.patches.index.pooling import LearnedTokenPooling, fit_pooling
from eligo.patches.model.build import scene_tokenizer

# ------------------------------------------------------------------ Ward's tree


def spread(points, weights, clusters) -> float:
    total = 0.0
    for cluster in set(clusters.tolist()):
        mine = clusters == cluster
        mean = (weights[mine, None] * points[mine]).sum(0) / weights[mine].sum()
        total += float((weights[mine] * ((points[mine] - mean) ** 2).sum(1)).sum())
    return total


def greedy(points, weights, count):
    """By definition: repeatedly merge the pair with the smallest increase."""
    clusters = np.arange(len(points))
    while len(set(clusters.tolist())) > count:
        names = sorted(set(clusters.tolist()))
        tries = [
            (spread(points, weights, np.where(clusters == b, a, clusters)), a, b)
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        ]
        _, a, b = min(tries)
        clusters = np.where(clusters == b, a, clusters)
    return np.unique(clusters, return_inverse=True)[1]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 8))
def test_tree_follows_ward(seed, count):
    random = np.random.default_rng(seed)
    points, weights = random.normal(size=(8, 3)), random.uniform(0.1, 3.0, 8)
    squared = ((points[:, None] - points) ** 2).sum(-1)
    got = cut_tree(ward_tree(squared, weights), count)
    assert got.tolist() == greedy(points, weights, count).tolist()


def test_equal_weights_give_the_tree_of_scipy():
    from scipy.cluster.hierarchy import fcluster, linkage

    points = np.random.default_rng(0).normal(size=(60, 5))
    squared = ((points[:, None] - points) ** 2).sum(-1)
    for count in (1, 7, 30, 60):
        got = cut_tree(ward_tree(squared, np.ones(60)), count)
        expected = fcluster(linkage(points, "ward"), count, "maxclust")
        pairs = set(zip(got.tolist(), expected.tolist(), strict=True))
        assert len(pairs) == len(set(got.tolist())) == len(set(expected.tolist())) == count


# ------------------------------------------------------------------ pooling


def tokens(count: int, dim: int = 8, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=draw), dim=-1)


@pytest.mark.parametrize("protected", [0, 1])
@pytest.mark.parametrize("factor", [1, 1.5, 2, 4, 8, 1000])
def test_same_number_of_vectors_as_hierarchical_pooling(factor, protected):
    ours = LearnedTokenPooling(8, factor, num_protected_tokens=protected)
    theirs = HierarchicalTokenPooling(factor, num_protected_tokens=protected)
    for count in (1, 2, 3, 17, 50):
        some = tokens(count)
        pooled = ours.pool_one(some)
        assert len(pooled) == ours.num_out(count) == len(theirs.pool_one(some))
        torch.testing.assert_close(pooled.norm(dim=-1), torch.ones(len(pooled)))
        torch.testing.assert_close(pooled[:protected], some[:protected])


def equal_worth(**more) -> LearnedTokenPooling:
    pooling = LearnedTokenPooling(8, **more)
    torch.nn.init.zeros_(pooling.predictor[2].weight)
    return pooling


def test_equal_weights_give_plain_clusters():
    pooling = equal_worth(pool_factor=2, num_protected_tokens=0)
    some = tokens(20)
    clusters = cut_tree(ward_tree((2 - 2 * some @ some.T).double().numpy(), np.ones(20)), 10)
    expected = {tuple(np.flatnonzero(clusters == c)) for c in range(10)}
    means = {key: F.normalize(some[list(key)].mean(0), dim=-1) for key in expected}
    for vector in pooling.pool_one(some).detach():
        assert min(float((vector - mean).norm()) for mean in means.values()) < 1e-5


def test_dropped_tokens_become_the_extra_token():
    pooling = LearnedTokenPooling(8, 8, num_protected_tokens=0, dropped_share=0.3)
    some = tokens(32)
    with torch.no_grad():
        worth = pooling.score(some).softmax(0)
        dropped, held = [], 0.0
        for token in worth.argsort().tolist():
            held += float(worth[token])
            if held <= 0.3:
                dropped.append(token)
        assert len(dropped) > 8  # more than a slot has on average
        extra = (worth[dropped].unsqueeze(1) * some[dropped]).sum(0)
        pooled = pooling.pool_one(some)
        torch.testing.assert_close(pooled[0], F.normalize(extra, dim=-1))
        rest = LearnedTokenPooling(8, num_protected_tokens=0, dropped_share=0.0)
        rest.load_state_dict(pooling.state_dict())
        kept = [token for token in range(32) if token not in dropped]
        # The other vectors are clusters of the kept tokens only.
        clusters = rest._clusters(some[kept], pooling.score(some)[kept], 3)
        sums = torch.zeros(3, 8).index_add(0, clusters, worth[kept].unsqueeze(1) * some[kept])
        for vector in F.normalize(sums, dim=-1):
            assert float((pooled[1:] - vector).norm(dim=1).min()) < 1e-5


def test_budgets_are_nested():
    pooling = LearnedTokenPooling(8, num_protected_tokens=0)
    some = tokens(24)
    tree = None
    for factor in (12, 6, 3, 2):
        clusters = pooling._clusters(some, pooling.score(some), 24 // factor).numpy()
        if tree is not None:  # every finer cluster lies inside a coarser one
            inside = {(fine, coarse) for fine, coarse in zip(clusters, tree, strict=True)}
            assert len(inside) == len(set(clusters.tolist()))
        tree = clusters


def test_token_order_does_not_matter():
    pooling = LearnedTokenPooling(8, 3, num_protected_tokens=0)
    some = tokens(30)
    with torch.no_grad():
        one, other = pooling.pool_one(some), pooling.pool_one(some[torch.randperm(30)])
    for vector in one:
        assert float((other - vector).norm(dim=1).min()) < 1e-5


def test_padding_does_not_matter():
    pooling = LearnedTokenPooling(8, 3)
    whole, mask = torch.zeros(2, 20, 8), torch.zeros(2, 20, dtype=torch.bool)
    whole[0], mask[0] = tokens(20), True
    whole[1, 8:], mask[1, 8:] = tokens(12, seed=1), True
    with torch.no_grad():
        found = pooling({"token_embeddings": whole, "attention_mask": mask})
        for row, own in enumerate((tokens(20), tokens(12, seed=1))):
            got = found["token_embeddings"][row][found["attention_mask"][row]]
            torch.testing.assert_close(got, pooling.pool_one(own))


def test_queries_are_unchanged():
    pooling = LearnedTokenPooling(8, 4)
    assert pooling.pool([tokens(9)], task="query")[0].shape == (9, 8)
    assert pooling.pool([tokens(9)], task="document")[0].shape == (3, 8)


def test_half_precision_is_supported():
    pooled = LearnedTokenPooling(8, 4).pool_one(tokens(33).half())
    assert pooled.dtype == torch.float16
    assert bool(pooled.isfinite().all())


@pytest.mark.parametrize(
    "wrong", [{"pool_factor": 0.5}, {"num_protected_tokens": -1}, {"dropped_share": 1.0}]
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        LearnedTokenPooling(8, **wrong)
    with pytest.raises(InputError, match="dim=8"):
        LearnedTokenPooling(8).pool_one(torch.randn(5, 4))


def world(count: int, seed: int):
    """Documents of noise tokens and a few that queries match."""
    draw = torch.Generator().manual_seed(seed)
    ideas = torch.randn(12, 16, generator=torch.Generator().manual_seed(99))
    dull = torch.randn(2, 16, generator=torch.Generator().manual_seed(98))
    documents, queries = [], []
    for _ in range(count):
        some = dull[torch.randint(2, (48,), generator=draw)]
        chosen = torch.randint(12, (4,), generator=draw)
        some = torch.cat([some, ideas[chosen]])
        some = some + 0.6 * torch.randn(52, 16, generator=draw)
        documents.append(F.normalize(some, dim=-1))
        queries.append(F.normalize(ideas[torch.randint(12, (3,), generator=draw)], dim=-1))
    return documents, queries


def error(pooling, documents, queries) -> float:
    words = torch.cat(queries)
    with torch.no_grad():
        gaps = [
            (words @ doc.T).amax(1) - (words @ pooling.pool_one(doc).T).amax(1) for doc in documents
        ]
    return float(torch.cat(gaps).square().mean())


def test_pooling_learns_which_tokens_queries_match():
    torch.manual_seed(0)
    pooling = LearnedTokenPooling(16, 8)
    fit_pooling(pooling, *world(60, 1), steps=80, batch_size=8)
    held_out = world(30, 2)
    plain = error(HierarchicalTokenPooling(8), *held_out)
    assert error(pooling, *held_out) < 0.9 * plain
    assert pooling.pool_factor == 8


def test_every_parameter_gets_a_gradient():
    pooling = LearnedTokenPooling(16, 8)
    before = {name: value.clone() for name, value in pooling.state_dict().items()}
    losses = fit_pooling(pooling, *world(4, 1), steps=2, batch_size=2)
    assert len(losses) == 2
    for name, value in pooling.state_dict().items():
        if name != "predictor.2.bias":  # softmax cancels a constant
            assert not torch.equal(value, before[name]), name


# ------------------------------------------------------------------ inside sentence-transformers


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> MultiVectorEncoder:
    folder = str(tmp_path_factory.mktemp("bert"))
    torch.manual_seed(0)
    tokenizer: PreTrainedTokenizerFast = scene_tokenizer()
    sizes = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    BertModel(sizes).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return MultiVectorEncoder(
        modules=[Transformer(folder), LearnedTokenPooling(16, 2)], device="cpu"
    )


DOCUMENT = "a red ball is left of a blue box and a star is behind a green gem."


def test_pooling_inside_an_encoder(encoder):
    document = encoder.encode_document([DOCUMENT])[0]
    query = encoder.encode_query([DOCUMENT])[0]
    assert len(document) == encoder[1].num_out(len(query)) < len(query)
    torch.testing.assert_close(
        torch.as_tensor(document).norm(dim=-1).cpu(), torch.ones(len(document))
    )
    assert encoder.similarity([query], [document]).shape == (1, 1)


def test_encoder_round_trip(encoder, tmp_path):
    encoder.save_pretrained(str(tmp_path))
    again = MultiVectorEncoder(str(tmp_path), device="cpu", trust_remote_code=True)
    for name, value in encoder[1].state_dict().items():
        assert torch.equal(value, again[1].state_dict()[name])
    one, other = (torch.as_tensor(each.encode_document([DOCUMENT])[0]) for each in (encoder, again))
    torch.testing.assert_close(one, other)


def test_pooling_per_call(encoder):
    plain = MultiVectorEncoder(modules=[encoder[0]], device="cpu")
    pooled = plain.encode_document([DOCUMENT], token_pooling=encoder[1])[0]
    assert len(pooled) == len(encoder.encode_document([DOCUMENT])[0])


def test_benchmark_runs(capsys, tmp_path, monkeypatch):
    pooling_benchmark.main(smoke=True)
    printed = capsys.readouterr().out.splitlines()
    rows = [json.loads(line) for line in printed if line.startswith('{"factor"')]
    assert [row["vectors"] for row in rows] == [25, 25, 13, 13, 7, 7]


def test_no_slot_is_empty_with_few_weighted_tokens():
    """A zero vector would bound the maximum cosine of every word from below."""
    torch.manual_seed(0)
    pooling = LearnedTokenPooling(8, 2.0)
    with torch.no_grad():
        pooling.mean_weight.fill_(40.0)  # a handful of tokens hold 98 % of the worth
        for factor in (1.1, 2.0, 4.0):
            pooled = pooling.fold(F.normalize(torch.randn(41, 8), dim=-1), factor)
            assert len(pooled) == 1 + int(40 // factor)
            torch.testing.assert_close(pooled.norm(dim=-1), torch.ones(len(pooled)))
