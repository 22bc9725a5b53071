"""All kernels compute the same function: against an independent oracle and each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patch_cases import (
    DEFAULTS,
    DOCUMENTED,
    VARIANTS,
    Batch,
    assert_close_gradients,
    batch,
    documented,
    gradients,
    tiny,
)

from eligo.errors import InputError
from eligo.patches import alignment_loss, two_pass_loss
from eligo.patches.kernels import algebra, blocks
from eligo.patches.kernels.hoist import text_blocks
from eligo.patches.kernels.interface import PatchDecision
from eligo.patches.model.functional import weighted_softmax

HERE = Path(__file__).parent
FAST = ("torch", "auto")


@pytest.mark.parametrize("name", DOCUMENTED)
@pytest.mark.parametrize(("paper", "dual"), VARIANTS)
def test_documented_network_matches_the_oracle(name, paper, dual):
    """Scores, masks and gradients; masks have a gradient only with Gumbel noise."""
    rules, inputs, expected = documented(name, paper, dual)
    for kernel in ("reference", *FAST):
        net = tiny(**rules, kernel=kernel).train()
        images, words = (part.clone().requires_grad_() for part in (inputs.images, inputs.words))
        torch.manual_seed(11)
        scores, masks = Batch(images, words, *inputs.arguments()[2:])(net)
        masks = masks if isinstance(masks, tuple) else (masks,)
        assert (scores.double() - expected.scores).abs().max() < 2e-6
        for mine, theirs in zip(masks, expected.masks, strict=True):
            assert torch.equal(mine.double(), theirs)
        parts = zip((scores, *masks), expected.probes, strict=True)
        sum((part * probe).sum() for part, probe in parts).backward()
        leaves = {"images": images, "words": words, **dict(net.named_parameters())}
        assert_close_gradients(
            {name: leaves[name].grad for name in expected.gradients}, expected.gradients
        )
        unknown = leaves.keys() - expected.gradients.keys()
        zeros = [leaves[name].grad for name in unknown]
        assert all(part is None or part.abs().max() < 1e-6 for part in zeros)


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("gram", [False, True])
def test_our_defaults_agree_with_the_loop(name, gram, monkeypatch):
    """Scores and gradients in float64, where rounding does not hide errors."""
    monkeypatch.setattr(algebra, "prefers_gram", lambda *_: gram)
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, seed=5).to(torch.float64)
    probe = torch.randn(len(inputs.images), len(inputs.words))
    results = {}
    for kernel in ("reference", "torch"):
        net = tiny(**settings, kernel=kernel).double()
        torch.manual_seed(7)
        scores = inputs.scores(net)
        torch.manual_seed(7)
        results[kernel] = scores.detach(), gradients(net, inputs, probe)
    assert torch.allclose(*(result[0] for result in results.values()), atol=1e-12)
    assert_close_gradients(results["torch"][1], results["reference"][1], 1e-9)


@pytest.mark.parametrize("nets", [1, 2])
@pytest.mark.parametrize("has_extra", [True, False])
def test_mixing_matrix_of_a_gpu_is_the_weighted_softmax(nets, has_extra, monkeypatch):
    """Values and gradients, also of dropped patches, with underflow and an empty selection."""
    monkeypatch.setattr(algebra, "values_are_free", lambda *_: False)
    random = torch.Generator().manual_seed(3)
    logits = [torch.randn(2, 3, 6, generator=random).double() for _ in range(nets)]
    logits[0][0, 1, 2] = 300.0  # dropped below: the kept ones underflow relative to it
    lives = [(torch.rand(2, 4, 6, generator=random) < 0.5).double() for _ in range(nets)]
    for live in lives:
        live[:, :, 0] = 1.0
    lives[0][0, :, 2], lives[0][1, 2] = 0.0, 0.0
    extra = torch.rand(2, 4, 6, generator=random).double() if has_extra else None
    probe = torch.randn(2, 4, 3 + has_extra, 6, generator=random).double()
    found = []
    for fast in (True, False):
        leaves = [part.clone().requires_grad_() for part in (*logits, *lives)]
        tail = [] if extra is None else [extra.clone().requires_grad_()]
        if fast:
            decisions = tuple(PatchDecision(live, live) for live in leaves[nets:])
            mixing = algebra.mixing_matrix(tuple(leaves[:nets]), decisions, *(tail or [None]))
        else:
            pairs = zip(leaves[:nets], leaves[nets:], strict=True)
            slots = sum(weighted_softmax(a.unsqueeze(1), b.unsqueeze(2)) for a, b in pairs)
            mixing = torch.cat([slots, *(part.unsqueeze(2) for part in tail)], 2)
        (mixing * probe).sum().backward()
        d_live = [part.grad for part in leaves[nets:]]
        d_live[0][1, 2] = 0.0  # of the empty selection: undefined
        found.append([mixing, *d_live, *(part.grad for part in (*leaves[:nets], *tail))])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", DEFAULTS)
def test_selection_and_share_agree(name):
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, seed=5)
    outputs = []
    for kernel in ("reference", "torch"):
        torch.manual_seed(7)
        outputs.append(inputs(tiny(**settings, kernel=kernel), return_selection=True))
    first, second = outputs
    assert torch.allclose(first.scores, second.scores, atol=2e-6)
    assert torch.allclose(first.kept_ratio, second.kept_ratio)
    for one, other in ((first.sparse, second.sparse), (first.dense, second.dense)):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one.kept_mask, other.kept_mask)
            assert torch.allclose(one.scores, other.scores, atol=1e-5)


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("dense", [0, 4])
def test_gumbel_noise_does_not_depend_on_the_kernel(paper, dense):
    """Every kernel draws the same noise; it affects gradients, never scores or masks."""
    inputs = batch(dense=dense, compat=True)
    grads, plain = {}, None
    for kernel in ("reference", "torch"):
        rules = {"use_paper_version": paper, "compat": True, "kernel": kernel}
        plain = inputs(tiny(**rules))
        net = tiny(**rules, use_gumbel_softmax=True, gumbel_tau=0.7)
        torch.manual_seed(11)
        scores, masks = inputs(net)
        after = torch.rand(())
        assert torch.equal(scores, plain[0])
        pairs = zip(masks, plain[1], strict=True) if paper else [(masks, plain[1])]
        assert all(torch.equal(one, other) for one, other in pairs)
        torch.manual_seed(11)
        inputs(net.eval())
        assert torch.equal(after, torch.rand(()))  # evaluation draws the same noise
        if paper:
            weights = torch.randn(masks[0].shape, generator=torch.Generator().manual_seed(2))
            (masks[-1] * weights).sum().backward()
            grads[kernel] = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
            assert any("score_predictor" in name for name in grads[kernel])
    if paper:
        assert_close_gradients(grads["torch"], grads["reference"])


def test_recorded_noise_is_reproduced(monkeypatch):
    """The documented draws: per text, sparse then dense, each (images, patches)."""
    inputs = batch(images=3, texts=2, dense=4, compat=True)
    for kernel in ("reference", "torch"):
        drawn = []

        def record(like, drawn=drawn):
            drawn.append(tuple(like.shape))
            return torch.full_like(like, 0.5)

        monkeypatch.setattr(torch, "rand_like", record)
        inputs(tiny(use_paper_version=True, compat=True, kernel=kernel, use_gumbel_softmax=True))
        assert drawn == [(3, 16)] * 4


def test_weights_that_underflow():
    """Kept patches with weights e^-200 of a dropped one: the softmax is renormalised."""
    inputs = batch(images=2, texts=3)
    probe = torch.randn(2, 3)
    results = []
    for kernel in ("reference", "torch"):
        net = tiny(kernel=kernel)
        with torch.no_grad():
            net.aggr_net.scale.fill_(300.0)
        results.append((inputs.scores(net), gradients(net, inputs, probe)))
    assert torch.allclose(results[0][0], results[1][0], atol=2e-6)
    assert_close_gradients(results[1][1], results[0][1], 1e-3)


def test_ties_go_to_the_lowest_index():
    inputs = batch()
    inputs.images[:, 1:] = inputs.images[:, 1:2]  # all patches equal
    for kernel in ("reference", "torch"):
        output = inputs(tiny(kernel=kernel), return_selection=True)
        assert torch.equal(output.sparse.in_order().indices, torch.arange(8).expand(3, 4, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("paper", [False, True])
def test_half_precision_gives_finite_scores(dtype, kernel, paper):
    inputs = batch(dense=5, masked=7)
    net = tiny(use_paper_version=paper, kernel=kernel)
    expected = inputs(net, return_selection=True)
    got = inputs.to(dtype)(net.to(dtype), return_selection=True)
    assert got.scores.dtype == torch.float32
    assert got.scores.isfinite().all()
    same = (expected.sparse.kept_mask == got.sparse.kept_mask).all(-1)
    same &= (expected.dense.kept_mask == got.dense.kept_mask).all(-1)
    # Weights are rounded too, and perturbed ones are large: wider than the bound of one product.
    difference = (expected.scores - got.scores).abs()[same]
    assert same.any()
    assert difference.max() < (1e-2 if dtype == torch.float16 else 6e-2)


@pytest.mark.parametrize("paper", [False, True])
def test_autocast_changes_nothing(paper):
    inputs, net = batch(dense=5), tiny(use_paper_version=paper)
    plain = inputs(net).scores
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(inputs(net).scores, plain)


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("paper", [False, True])
def test_block_size_does_not_matter(compat, paper):
    inputs = batch(images=3, texts=7, dense=5, compat=compat)
    net = tiny(use_paper_version=paper, compat=compat)
    images, texts = net.sides(*inputs.arguments())
    whole = blocks.match(net.parts(), images, texts, decisions=True)
    for budget in (1, 40_000, 100_000_000):
        cut = blocks.match(net.parts(), images, texts, decisions=True, byte_budget=budget)
        assert torch.allclose(cut.scores, whole.scores, atol=1e-6)
        assert torch.equal(cut.sparse.live, whole.sparse.live)


def test_text_blocks_cover_all_texts_once():
    lengths = torch.tensor([3, 40, 1, 7] * 30)
    for budget in (1, 5_000, 10**9):
        ids = list(text_blocks(lengths, (100, 10), budget))
        assert sorted(torch.cat(ids).tolist()) == list(range(len(lengths)))
        for block in ids:
            assert len(block) * (100 + 10 * int(lengths[block].max())) <= budget or len(block) == 1
    short = next(iter(text_blocks(lengths, (100, 10), 10**9)))
    assert int(lengths[short].max()) < 40  # long texts do not pad short ones


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize(("compat", "paper"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("positives", ["diagonal", "ids", "mask"])
def test_two_passes_equal_one(kernel, compat, paper, positives):
    inputs = batch(images=5, texts=5, dense=4, compat=compat).to(torch.float64)
    net = tiny(use_paper_version=paper, compat=compat, kernel=kernel).double()
    roles = {}
    if positives == "ids":
        roles = {"image_ids": torch.tensor([0, 1, 2, 1, 0])}
    if positives == "mask":
        roles = {"positive_mask": torch.eye(5).bool() | (torch.arange(5) == 2)}
    results = []
    for two in (False, True):
        net.zero_grad()
        images = inputs.images.clone().requires_grad_()
        sides = net.sides(images, *inputs.arguments()[1:])
        if two:
            loss, _ = two_pass_loss(net, *sides, **roles)
        else:
            loss = alignment_loss(net.match(*sides).scores, **roles)
        loss.backward()
        grads = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
        results.append((loss.detach(), {"images": images.grad, **grads}))
    assert torch.allclose(results[0][0], results[1][0])
    # The triplet loss is float32, so its gradient in the scores is too.
    assert_close_gradients(results[1][1], results[0][1], 1e-5)


def test_two_passes_refuse_random_patches():
    inputs = batch(images=3, texts=3)
    net = tiny(use_paper_version=True, decision="bernoulli")
    with pytest.raises(InputError, match="bernoulli"):
        two_pass_loss(net, *net.sides(*inputs.arguments()))


def test_few_pairs_get_a_gradient(monkeypatch):
    inputs = batch(images=8, texts=8)
    net = tiny()
    pairs_seen = []
    once = blocks.match_pairs

    def spy(parts, images, texts, image_ids, text_ids):
        pairs_seen.append(len(image_ids))
        return once(parts, images, texts, image_ids, text_ids)

    monkeypatch.setattr(blocks, "match_pairs", spy)
    two_pass_loss(net, *net.sides(*inputs.arguments()))
    assert pairs_seen[0] <= 24


def test_triton_reports_what_is_missing():
    pytest.importorskip("triton")
    with pytest.raises(InputError, match="CUDA device"):
        batch()(tiny(kernel="triton"))


def test_interpreted_triton_kernel():
    """Runs `patch_triton.py`, where the kernel is interpreted on the CPU."""
    pytest.importorskip("triton")
    # In a new process: Triton reads the variable on import.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "patch_triton.py"]
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        command, cwd=HERE, env=settings, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["open_dense", "paper_dense", "masked", "ratio_one"])
@torch.no_grad()
def test_gpu_kernels_agree_with_the_loop(name, dtype):
    settings, shape = DEFAULTS[name]
    inputs = batch(**shape, texts=20, seed=5).to(dtype).cuda()  # more texts than patches
    outputs = {
        kernel: inputs(tiny(**settings, kernel=kernel).to("cuda", dtype), return_selection=True)
        for kernel in ("reference", "torch", "triton")
    }
    expected = outputs.pop("reference")
    for got in outputs.values():
        same = (expected.sparse.kept_mask == got.sparse.kept_mask).all(-1)
        assert same.float().mean() > 0.9
        tolerance = 2e-6 if dtype == torch.float32 else 3e-3
        assert (expected.scores - got.scores).abs()[same].max() < tolerance
