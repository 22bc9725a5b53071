"""The Triton kernel, interpreted on the CPU: `TRITON_INTERPRET=1 pytest patch_triton.py`.

Not collected by itself; `test_patches_kernels.py` runs it in a process of its own.
"""

import os

import pytest
import torch
from patch_cases import DEFAULTS, MODELS, batch, golden, golden_net, tiny

from eligo.errors import InputError

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before Triton is imported"


@torch.no_grad()
@pytest.mark.parametrize(
    "name",
    ["open_dense", "paper_dense", "paper_single", "bernoulli_masked", "ratio_one"],
)
def test_triton_agrees_with_the_loop(name):
    settings, shape = DEFAULTS[name]
    inputs, scores = batch(**shape, seed=5), []
    for kernel in ("reference", "triton"):
        torch.manual_seed(7)
        scores.append(inputs(tiny(**settings, kernel=kernel)).scores)
    assert torch.allclose(*scores, atol=2e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in MODELS if "cls" in name])
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
def test_triton_where_it_cannot():
    """Underflow goes the other way; gradients, float64 and large inputs are refused by name."""
    inputs = batch(images=2, texts=3)
    scores = []
    for kernel in ("reference", "triton"):
        net = tiny(kernel=kernel)
        net.aggr_net.scale.fill_(300.0)
        scores.append(inputs(net).scores)
    assert torch.allclose(*scores, atol=2e-6)
    half = batch(dense=4).to(torch.float16)(tiny(use_paper_version=True, kernel="triton").half())
    assert half.scores.isfinite().all()
    with pytest.raises(InputError, match="float32 at most"):
        inputs.to(torch.float64)(tiny(kernel="triton").double())
    with pytest.raises(InputError, match="300 patches"):
        batch(tokens=301)(tiny(num_patches=300, kernel="triton"))
    with torch.enable_grad(), pytest.raises(InputError, match="no backward pass"):
        inputs(tiny(kernel="triton"))


@torch.no_grad()
def test_auto_says_what_it_took(caplog):
    caplog.set_level("DEBUG", "eligo.patches.kernels")
    batch()(tiny())
    assert "kernel auto: triton" in caplog.text
    with torch.enable_grad():
        batch()(tiny())
    assert "kernel auto: torch, as it has no backward pass" in caplog.text
