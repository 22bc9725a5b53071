"""Single modules: TokenSparse, aggregation and HRPA, with their masks and help texts."""

import doctest
import importlib
import pydoc

import pytest
import torch

from eligo.errors import InputError
from eligo.patches import HRPA, DualTokenAggregation, TokenAggregation, TokenSparse
from eligo.patches.model import functional
from eligo.patches.model.functional import min_max, unit


def test_token_sparse_by_hand():
    tokens = torch.randn(1, 4, 8)
    x = torch.tensor([[0.1, 0.5, 0.5, 0.0]])
    y = torch.tensor([[0.2, 0.0, 0.0, 0.9]])
    kept, extra, mask = TokenSparse(8, 0.5)(tokens, x, y, torch.rand(1, 4))
    assert torch.equal(kept, tokens[:, [3, 1]])  # 0.9, then the first of the two 0.5
    assert torch.equal(mask, torch.tensor([[0.0, 1.0, 0.0, 1.0]]))
    weights = torch.softmax(torch.tensor([0.3, 0.5]), 0)
    assert torch.allclose(extra[0, 0], weights @ tokens[0, [0, 2]])


def test_token_sparse_follows_equation_3():
    sparse = TokenSparse(8, 0.5, use_paper_version=True)
    tokens, (x, y, z) = torch.randn(2, 6, 8), torch.randn(3, 2, 6)
    p = sparse.score_predictor(tokens).squeeze(-1)
    expected = 0.4 * p + 0.3 * (min_max(y) + min_max(z) + 2 * min_max(x))
    _, _, mask = sparse(tokens, x, y, z, beta=0.3)
    assert torch.equal(mask.bool(), functional.exact_top_k(expected, 3))
    without = 0.4 * p + 0.3 * (min_max(y) + 2 * min_max(x))
    _, _, mask = sparse(tokens, x, y, beta=0.3)
    assert torch.equal(mask.bool(), functional.exact_top_k(without, 3))
    with pytest.raises(InputError, match="beta"):
        sparse(tokens, x, y, z, beta=0.7)


def test_nothing_dropped_gives_a_zero_extra_token():
    kept, extra, mask = TokenSparse(8, 1.0)(torch.randn(2, 5, 8), *torch.randn(2, 2, 5))
    assert kept.shape == (2, 5, 8)
    assert not extra.any()
    assert mask.all()


@pytest.mark.parametrize("compat", [False, True])
def test_keep_policy_excludes_patches(compat):
    x = torch.randn(2, 6, 8)
    policy = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]).expand(2, 6)
    net = TokenAggregation(8, 3, compat=compat)
    assert torch.allclose(net(x, policy), net(x[:, policy[0].bool()]), atol=1e-6)
    assert torch.allclose(net(x, policy.bool()), net(x, policy))
    dual = DualTokenAggregation(8, 3, compat=compat)
    alone = dual(x, None, policy)
    both = dual(x, x[:, :4], policy, torch.ones(2, 4))
    assert torch.allclose(both, alone + dual.fold(dual.weight_dense, x[:, :4]), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_work_in_half_precision(dtype):
    x = torch.randn(2, 6, 8, dtype=dtype)
    policy = torch.tensor([[1, 0, 1, 1, 0, 1], [0] * 6], dtype=dtype)
    folded = TokenAggregation(8, 3).to(dtype)(x, policy)
    assert folded.isfinite().all()
    assert not folded[1].any()  # an empty row gives zeros
    score = HRPA(8)(unit(x).to(dtype), unit(x).to(dtype), policy.bool())
    assert score.isfinite().all()
    assert score[1] == 0


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_hrpa_by_hand(paper, scan, bidirectional):
    patches, words = unit(torch.randn(2, 4, 8)), unit(torch.randn(2, 3, 8))
    net = HRPA(8, 5, paper, bidirectional, scan)
    similarity = words @ patches.transpose(1, 2)
    if scan:
        similarity = torch.where(similarity > 0, similarity, 0.1 * similarity)
    r, c = similarity.max(2).values, similarity.max(1).values
    expected = r.mean(1) + (c.mean(1) if bidirectional else 0)
    if paper:
        for values in (r, c):
            top = values.sort(descending=True).values
            top = torch.cat([top, torch.zeros(2, 5 - top.shape[1])], 1)
            expected = expected + net.relevance_mlp(top).squeeze(1)
    assert torch.allclose(net(patches, words).squeeze(1), expected, atol=1e-6)


@pytest.mark.parametrize("paper", [False, True])
def test_masked_patches_have_no_effect(paper):
    patches, words = unit(torch.randn(2, 6, 8)), unit(torch.randn(2, 3, 8))
    mask = torch.tensor([True, True, False, True, True, True]).expand(2, 6)
    net = HRPA(8, 5, paper)
    assert torch.allclose(net(patches, words, mask), net(patches[:, mask[0]], words), atol=1e-6)


def test_documented_mask_by_hand():
    """-1000 after the leaky ReLU, a count + 1e-8, and a top-k that sees the fill."""
    patches, words = unit(torch.randn(1, 3, 8)), unit(torch.randn(1, 2, 8))
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    net = HRPA(8, 3, use_paper_version=True, compat=True)
    a = torch.nn.functional.leaky_relu(words @ patches.transpose(1, 2), 0.1)
    a = a.masked_fill(mask.unsqueeze(1) == 0, -1000.0)
    r, c = a.max(2).values, a.max(1).values
    expected = r.mean(1) + (c * mask).sum(1) / (mask.sum(1) + 1e-8)
    r = torch.cat([r.sort(descending=True).values, torch.zeros(1, 1)], 1)  # two words, k = 3
    for top in (r, c.sort(descending=True).values):
        expected = expected + net.relevance_mlp(top).squeeze(1)
    assert torch.allclose(net(patches, words, mask).squeeze(1), expected, rtol=1e-5)


def test_mismatched_widths_are_refused():
    with pytest.raises(InputError, match="8 and words 7 wide"):
        HRPA(8)(torch.rand(1, 2, 8), torch.rand(1, 2, 7))


def test_straight_through_gradient_by_hand():
    score = torch.tensor([[0.9, 0.2, 0.6, 0.5]], requires_grad=True)
    live = functional.straight_through(score, functional.exact_top_k(score, 2))
    assert torch.equal(live.detach(), torch.tensor([[1.0, 0.0, 1.0, 0.0]]))
    live.sum().backward()
    q = torch.sigmoid((score.detach() - 0.55) / 0.1)  # between the last kept and the next
    assert torch.allclose(score.grad, q * (1 - q) / 0.1)
    score.grad = None
    functional.straight_through(score, torch.ones(1, 4, dtype=torch.bool)).sum().backward()
    assert not score.grad.any()  # no competing patch


def test_bernoulli_keeps_at_least_one():
    probability = torch.full((1000, 3), 1e-4)
    mask = torch.tensor([False, True, True]).expand(1000, 3)
    drawn = functional.bernoulli(probability, torch.rand(1000, 3), 1.0, mask)
    assert (drawn.sum(1) >= 1).all()
    assert not drawn[:, 0].any()


PAGES = {
    TokenSparse: ["(1)", "(2)", "(3)", "(B, N, C)", "(B, K, C)", "sigmoid(MLP(v_i))"],
    TokenAggregation: ["(4)", "(B, n, C)", "(B, S, n)", "(B, S, C)"],
    DualTokenAggregation: ["(4)", "W^s", "W^d", "(B, S, C)"],
    HRPA: ["(5)", "max_p A_mp", "(B, M, P)", "(B, 1)", "top_k"],
}


@pytest.mark.parametrize("module", PAGES)
def test_help_shows_equations_and_shapes(module):
    page = pydoc.plain(pydoc.render_doc(module))
    assert all(piece in page for piece in [*PAGES[module], "Symbols:", "Tensor shapes:"])


EXAMPLES = {
    "index.pooling": 2,
    "index.search": 2,
    "kernels.algebra": 1,
    "metrics": 1,
    "model.aggregation": 2,
    "model.functional": 5,
    "model.hrpa": 1,
    "model.seps": 1,
    "model.token_sparse": 1,
    "training.losses": 4,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples(name):
    module = importlib.import_module(f"eligo.patches.{name}")
    found = doctest.DocTestFinder().find(module, extraglobs={"torch": torch})
    found = [test for test in found if test.examples]
    assert len(found) == EXAMPLES[name]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in found:
        assert runner.run(test).failed == 0, test.name
