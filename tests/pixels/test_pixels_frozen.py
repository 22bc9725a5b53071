"""The copy of a model for inference: the same results, shared weights; on a GPU from graphs."""

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch import nn

from eligo.nn.cuda_graphs import GraphedFunction
from eligo.pixels import PixelsModel, TextBatch
from eligo.pixels.model.frozen import frozen


def with_statistics(**changes) -> PixelsModel:
    """A model whose BatchNorms do something."""
    model = tiny_model(**changes)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.bias):
                nn.init.normal_(tensor)
            for tensor in (module.running_var, module.weight):
                nn.init.uniform_(tensor, 0.5, 2.0)
    return model


@torch.no_grad()
@pytest.mark.parametrize("form", ["gated", "legacy"])
def test_folding_changes_rounding_only(form: str):
    model = with_statistics(**{"sam.form": form, "encoder.depth_stem": True})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copy = frozen(model)
    inputs = (*pictures(), torch.rand(2, 1, 64, 96) < 0.7, some_text(3, 0))
    found, expected = copy(*inputs), model(*inputs)
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.tag_maps, expected.tag_maps, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in copy.modules())
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())  # as it was
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    shared = copy.encoder.stages[2].blocks[0].ffn.expand.weight
    assert shared.data_ptr() == model.encoder.stages[2].blocks[0].ffn.expand.weight.data_ptr()


@torch.no_grad()
def test_half_precision_is_that_of_autocast():
    """Except for the folded norms: a model whose norms do nothing gives equal results."""
    model = tiny_model()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0
    inputs = (*pictures(), None, some_text(3, 0))
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = frozen(model, torch.bfloat16)(*inputs), model(*inputs)
    spread = expected.logits.std()
    assert (found.logits - expected.logits).abs().max() < 0.1 * spread
    copy = frozen(model, torch.bfloat16)
    assert copy.encoder.stages[0].blocks[0].attention.qkv.weight.dtype == torch.bfloat16
    assert copy.encoder.stages[0].norm_out is None
    assert copy.text_norm is not None
    assert copy.text_norm.weight.dtype == torch.float32


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["gated", "legacy"])
def test_graphs_of_a_model_match_eager_mode(dtype: torch.dtype, form: str):
    """Two sizes in turn, with and without words, depth and mask; equal to the bit."""
    model = frozen(with_statistics(**{"sam.form": form}).cuda(), dtype)

    def run(rgb, depth, mask, words, word_mask):
        text = None if words is None else TextBatch(words, word_mask)
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            return model.segment(rgb, depth, mask, text)[:2]

    stages = model.encoder.stages
    graphs = GraphedFunction(run, max_graphs=8, keep=lambda: [s.last_tables for s in stages])
    calls = []
    for height, width in ((64, 96), (75, 109)):
        rgb, depth = (part.cuda() for part in pictures(2, height, width))
        text = some_text(3, 0).to("cuda")
        mask = torch.rand(depth.shape, device="cuda") < 0.7
        calls.append((rgb, depth, mask, text.embeddings, text.mask))
        calls.append((rgb, depth, None, None, None))
        calls.append((rgb, None, None, text.embeddings, text.mask))
    for _ in range(3):
        for call in calls:
            changed = (call[0] + torch.randn_like(call[0]), *call[1:])
            found, expected = graphs(*changed), run(*changed)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours is None) == (theirs is None)
                assert ours is None or torch.equal(ours, theirs)
    assert graphs.memory()["graphs"] == len(calls)
