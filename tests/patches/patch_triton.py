"""The Triton kernel, interpreted on the CPU: `TRITON_INTERPRET=1 pytest patch_triton.py`.

Not collected by itself; `test_patches_kernels.py` runs it in a process of its own.
"""

import os

import pytest
import torch
from patch_cases import (
    DEFAULTS,
    batch,
    documented,
    golden,
    golden_net,
    tiny,
)

from eligo import ops
from eligo.errors import InputError
from eligo.patches.kernels import algebra, blocks
from eligo.patches.kernels.hoist import halved, hoist
from eligo.patches.kernels.interface import PatchDecision
from eligo.patches.kernels.triton_kernels import keep_best, span

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before Triton is imported"
SMALL = {"images": 2, "texts": 2}  # every program is slow when interpreted


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    ["open_dense", "paper_dense", "paper_single", "bernoulli_masked", "ratio_one"],
)
def test_triton_agrees_with_the_loop(name):
    settings, shape = DEFAULTS[name]
    inputs, scores = batch(**shape, **SMALL, seed=5), []
    for kernel in ("reference", "triton"):
        torch.manual_seed(7)
        scores.append(inputs(tiny(**settings, kernel=kernel)).scores)
    assert torch.allclose(*scores, atol=2e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ["open", "masked"])
def test_narrow_factor_agrees_with_the_loop(name, monkeypatch):
    """The order of products used in half precision, in float32, where errors are visible."""
    monkeypatch.setattr(algebra, "prefers_gram", lambda *_: True)
    monkeypatch.setattr(
        blocks, "_with_factor", lambda rows, _: blocks.replace(rows, factor=span(rows.patches))
    )
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, **SMALL, seed=5)
    scores = [inputs(tiny(**settings, kernel=kernel)).scores for kernel in ("reference", "triton")]
    assert torch.allclose(*scores, atol=2e-6)


@torch.no_grad()
@pytest.mark.parametrize(("name", "gram"), [("open", True), ("paper_dense", False)])
def test_half_precision_agrees_at_equal_selection(name, gram, monkeypatch):
    monkeypatch.setattr(algebra, "prefers_gram", lambda *_: gram)
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, images=2, texts=4, tokens=5, seed=5).to(torch.float16)
    net = tiny(**settings, num_patches=4, kernel="reference").half()
    expected = inputs(net, return_selection=True)
    images, texts = net.sides(*inputs.arguments())
    rows = hoist(net.parts(), images)
    patches, norms = halved(images.patches, rows.norms)  # as on a GPU
    rows = blocks.replace(rows, patches=patches, norms=norms)
    assert blocks._with_factor(rows, 4).factor is not None
    got = blocks.match_rows(net.parts(), rows, texts, decisions=True, fused=True)
    same = (expected.sparse.kept_mask == (got.sparse.live > 0.5)).all(-1)
    assert same.float().mean() > 0.9
    assert (expected.scores - got.scores).abs()[same].max() < 3e-3


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (5, 5), (20, 7)])
def test_kept_patches_are_the_exact_top_k(count, kept):
    """Against the sort: signs, ties, both zeros, infinities and NaN; weights of the dropped too."""
    score = torch.randn(2, 6, count, generator=torch.Generator().manual_seed(count))
    score[0, 0] = score[0, 0].round()
    score[0, 1] = 0.0
    score[0, 1, ::2] = -0.0
    score[0, 2] = -score[0, 2].abs()
    live, extra = keep_best(score, kept, None)
    keep = ops.top_k_mask(score, kept)
    assert torch.equal(live > 0.5, keep)
    expected = algebra.dropped_weights(PatchDecision(score, keep.float()), None)
    assert torch.allclose(extra, expected, atol=1e-6)
    score[1, 0, 0], score[1, 1, -1] = torch.nan, -torch.inf
    assert torch.equal(keep_best(score, kept, None)[0] > 0.5, ops.top_k_mask(score, kept))


def test_padded_patches_are_never_kept():
    score = torch.randn(3, 4, 20, generator=torch.Generator().manual_seed(0)).round()
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[2] = False
    budget = torch.tensor([4, 30, 1])
    live, extra = keep_best(score, budget, mask)
    every = mask[:, None].expand(score.shape)
    assert torch.equal(live > 0.5, ops.top_k_mask(score, budget[:, None].expand(3, 4), every))
    expected = algebra.dropped_weights(PatchDecision(score, live), mask)
    assert torch.allclose(extra, expected, atol=1e-6)


@torch.no_grad()
def test_singular_gram_matrix_has_a_factor():
    """A singular Gram matrix, and one of zeros."""
    patches = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(0))
    patches[1] = patches[1, :1]
    patches[2] = 0.0
    factor = span(patches)
    assert torch.allclose(
        factor @ factor.transpose(1, 2), patches @ patches.transpose(1, 2), atol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "paper", "dual"),
    [("one_word", False, True), ("ratio_one", True, True), ("gumbel", True, False)],
)
def test_documented_network_matches_the_oracle(name, paper, dual):
    rules, inputs, expected = documented(name, paper, dual)
    with torch.no_grad():
        scores, masks = inputs(tiny(**rules, kernel="triton").train())
    assert (scores.double() - expected.scores).abs().max() < 2e-6
    masks = masks if isinstance(masks, tuple) else (masks,)
    assert all(
        torch.equal(mine.double(), theirs)
        for mine, theirs in zip(masks, expected.masks, strict=True)
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["guide_tiny_open.safetensors", "guide_tiny_paper.safetensors"])
def test_triton_reproduces_the_golden_files(name):
    config, tensors = golden(name)
    net = golden_net(config, tensors, kernel="triton")
    keys = ("in.img", "in.cap", "in.cap_lens", "in.long", "in.long_lens")
    scores, masks = net(*(tensors.get(key) for key in keys))
    assert (scores.double() - tensors["out.eval.sims_f64"]).abs().max() < 2e-6
    if config["use_paper_version"]:
        assert torch.equal(masks[0], tensors["out.train.mask_sparse"])
    else:
        assert torch.equal(masks, tensors["out.train.mask"])


@torch.no_grad()
def test_extreme_inputs_are_finite_or_refused():
    """Nothing underflows; gradients, float64 and large inputs are refused."""
    inputs = batch(images=1, texts=2)
    scores = []
    for kernel in ("reference", "triton"):
        net = tiny(kernel=kernel)
        net.aggr_net.scale.fill_(300.0)
        scores.append(inputs(net).scores)
    assert torch.allclose(*scores, atol=2e-6)
    half = batch(images=1, texts=2, dense=4).to(torch.float16)
    half = half(tiny(use_paper_version=True, kernel="triton").half())
    assert half.scores.isfinite().all()
    with pytest.raises(InputError, match="float32 at most"):
        inputs.to(torch.float64)(tiny(kernel="triton").double())
    with pytest.raises(InputError, match="300 patches"):
        batch(tokens=301)(tiny(num_patches=300, kernel="triton"))
    with torch.enable_grad(), pytest.raises(InputError, match="no backward pass"):
        inputs(tiny(kernel="triton"))
    frozen = tiny(use_paper_version=True, kernel="triton")
    frozen.aggr_net.requires_grad_(False)  # its predictors still learn
    with torch.enable_grad(), pytest.raises(InputError, match="no backward pass"):
        inputs(frozen)


@torch.no_grad()
def test_auto_logs_the_chosen_kernel(caplog):
    caplog.set_level("DEBUG", "eligo.patches.kernels")
    batch(images=1, texts=1)(tiny())
    assert "kernel auto: triton" in caplog.text
    with torch.enable_grad():
        batch(images=1, texts=2)(tiny())
    assert "kernel auto: torch, as it has no backward pass" in caplog.text
