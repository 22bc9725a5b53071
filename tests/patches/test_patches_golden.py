"""The documented network: scores, masks, gradients, losses and metrics, for every kernel."""

import numpy as np
import pytest
import torch
from patch_cases import GOLDEN, KERNELS, MODELS, golden, golden_net

from eligo.patches import (
    PatchLoss,
    alignment_loss,
    documented_ratio_loss,
    ratio_loss,
    retrieval_metrics,
)
from eligo.patches.model.functional import unit
from eligo.patches.model.token_sparse import combine, cosine_to_mean


@pytest.fixture(params=MODELS)
def model(request):
    return golden(request.param)


def run(net, tensors, images=None, words=None):
    return net(
        tensors["in.img"] if images is None else images,
        tensors["in.cap"] if words is None else words,
        tensors["in.cap_lens"],
        tensors.get("in.long"),
        tensors.get("in.long_lens"),
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_and_masks_match_the_golden_files(model, kernel):
    config, tensors = model
    net = golden_net(config, tensors, kernel=kernel)
    assert sum(part.numel() for part in net.parameters()) == config["params"]
    scores, masks = run(net, tensors)
    truth = tensors["out.eval.sims_f64"]
    assert (scores.double() - truth).abs().max() < 2e-6
    assert (run(net.eval(), tensors).double() - truth).abs().max() < 2e-6
    names = ["mask"] if isinstance(masks, torch.Tensor) else ["mask_sparse", "mask_dense"]
    masks = [masks] if isinstance(masks, torch.Tensor) else masks
    assert len(masks) == sum(f"out.train.{name}" in tensors for name in names)
    for name, mask in zip(names, masks, strict=False):
        assert torch.equal(mask, tensors[f"out.train.{name}"])


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_match_the_golden_files(model, kernel):
    config, tensors = model
    net = golden_net(config, tensors, kernel=kernel)
    leaves = {name: tensors[f"in.{name}"].clone().requires_grad_() for name in ("img", "cap")}
    long = tensors.get("in.long")
    if long is not None:
        tensors = {**tensors, "in.long": (long := long.clone().requires_grad_())}
    scores, _ = run(net, tensors, *leaves.values())
    (scores * tensors["in.probe"]).sum().backward()
    leaves |= dict(net.named_parameters())
    for name, leaf in leaves.items():
        expected = tensors.get(f"grad.probe.{name}")
        if expected is None:
            assert name in config.get("no_grad", []) + config["zero_grad_in_theory"]
            assert leaf.grad is None or leaf.grad.abs().max() < 1e-6
        else:
            assert leaf.grad is not None
            assert (leaf.grad - expected).abs().max() <= 1e-4 * expected.abs().max(), name
    assert long is None or long.grad is None  # dense words only guide the selection


@pytest.mark.parametrize("kernel", ["reference", "torch"])
@pytest.mark.parametrize("hardest", [False, True])
@pytest.mark.parametrize("margin", [0.2, 1.0])
def test_losses_match_the_golden_files(model, kernel, hardest, margin):
    config, tensors = model
    net = golden_net(config, tensors, kernel=kernel)
    loss = PatchLoss(margin, hardest, ratio_weight=2.0, target_ratio=0.3)
    named = loss(net, run(net, tensors), tensors["in.img_ids"])
    got = torch.stack([named[name] for name in ("total", "align", "ratio")])
    expected = tensors[f"loss.{'hard' if hardest else 'sum'}_m{margin}"]
    assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_intermediate_values_match_the_golden_files(model):
    """s_im, s_st, s_dt, combined scores, extra tokens and slots, module by module."""
    config, tensors = model
    net = golden_net(config, tensors)
    patches = tensors["in.img"][:, config["has_cls"] :]
    s_im = cosine_to_mean(patches)
    assert torch.allclose(s_im, tensors["mid.s_im"], atol=1e-5)
    for text in range(config["B_t"]):
        sides = {}
        for name, key in (("s", "cap"), ("d", "long")):
            if f"in.{key}" in tensors:
                words = tensors[f"in.{key}"][text, : tensors[f"in.{key}_lens"][text]]
                sides[name] = unit(patches) @ unit(words.mean(0))
                assert torch.allclose(sides[name], tensors[f"mid.att_{name}"][text], atol=1e-5)
        for name, other, sparse in (
            ("s", "d", net.sparse_net_cap),
            ("d", "s", net.sparse_net_long),
        ):
            if name not in sides:
                continue
            guides = (s_im, sides[name], sides.get(other))
            score = combine(sparse.predict(patches), *guides, 0.25)
            assert torch.allclose(score, tensors[f"mid.score_{name}"][text], atol=1e-5)
            kept, extra, mask = sparse(patches, *guides)
            assert torch.allclose(extra[:, 0], tensors[f"mid.extra_{name}"][text], atol=1e-5)
            assert torch.equal(mask.sum(1), torch.full((config["B_v"],), float(config["K"])))
            if not config["use_paper_version"]:
                call = text if len(sides) == 1 else 2 * text + (name == "d")
                assert torch.allclose(net.aggr_net(kept), tensors["mid.aggr"][call], atol=1e-5)


@pytest.mark.parametrize("kind", ["sum", "hard"])
@pytest.mark.parametrize("ids", ["ids", "noids"])
def test_alignment_loss_matches_the_golden_files(kind, ids):
    _, tensors = golden("losses.safetensors")
    scores = tensors["in.scores"].clone().requires_grad_()
    given = tensors["in.img_ids"] if ids == "ids" else None
    loss = alignment_loss(scores, given, hardest=kind == "hard")
    loss.backward()
    assert torch.allclose(loss, tensors[f"out.loss.{kind}_{ids}"], rtol=1e-5)
    assert torch.allclose(scores.grad, tensors[f"out.grad.{kind}_{ids}"])


def test_ratio_losses_match_the_golden_files():
    _, tensors = golden("losses.safetensors")
    sparse, dense = tensors["in.mask_sparse"], tensors["in.mask_dense"]
    got = {
        "tuple_rho0.5_l1_1_l2_0.5": documented_ratio_loss((sparse, dense), 0.5, 1.0, 0.5),
        "single_rho0.5": documented_ratio_loss(sparse + dense, 0.5),
        "sparse_only_rho0.5": documented_ratio_loss((sparse,), 0.5),
        "paper_eq7_rho0.5_l1_0.5_l2_0.5": ratio_loss((sparse.mean() + dense.mean()) / 2, 0.5),
    }
    for name, value in got.items():
        assert torch.allclose(value, tensors[f"out.ratio.{name}"], rtol=1e-5), name


def test_metrics_match_the_golden_files():
    expected = np.load(GOLDEN / "metrics.npz")
    found = retrieval_metrics(torch.from_numpy(expected["sims"]))
    for name, side in (("i2t", found.image_to_text), ("t2i", found.text_to_image)):
        got = [*side.any_hit.values(), side.median_rank, side.mean_rank]
        assert np.allclose(got, expected[f"{name}_r"], rtol=0, atol=1e-9)
        assert np.array_equal(side.ranks.numpy(), expected[f"{name}_ranks"])
        assert np.array_equal(side.best.numpy(), expected[f"{name}_top1"])
    assert found.rsum == pytest.approx(float(expected["rsum"]), abs=1e-9)
