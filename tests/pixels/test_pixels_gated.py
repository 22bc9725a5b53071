"""The gated form of the alignment, from its equations, sample by sample."""

import math

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_model
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.nn import CrossAttention
from eligo.pixels import TextBatch
from eligo.pixels.config import SamConfig
from eligo.pixels.model.alignment import DecoderAlignment, EncoderAlignment, SemanticAlignment
from eligo.pixels.text.batch import Text

DIM, TEXT_DIM, HEADS = 16, 10, 4
GRID = (2, 3, 5)


def config(cosine: bool) -> SamConfig:
    modes = {"use_cosine": cosine, "logit_init": 3.0}
    sides = {f"{side}.{name}": v for side in ("encoder", "decoder") for name, v in modes.items()}
    return SamConfig().replace(sides)


def lively(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.ndim or parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))


def cross_attention(attention: CrossAttention, x: Tensor, words: Tensor, cosine: bool) -> Tensor:
    """CA(x, t) of one sample, one head at a time; zero without words."""
    if not len(words):
        return torch.zeros_like(x)
    q, k, v = attention.query_proj(x), attention.key_proj(words), attention.value_proj(words)
    mixed, size = [], DIM // HEADS
    scale = attention.scale.log_scale.exp()
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        products = torch.einsum("ijd,td->ijt", q[..., part], k[..., part])
        if cosine:
            lengths = q[..., part].norm(dim=-1)[..., None] * k[..., part].norm(dim=-1)
            logits = scale * products / lengths
        else:
            logits = scale * products / math.sqrt(size)
        mixed.append(logits.softmax(-1) @ v[..., part])
    return attention.out_proj(torch.cat(mixed, -1))


@pytest.fixture
def text() -> Text:
    return Text(torch.randn(2, 4, TEXT_DIM), torch.tensor([[True, False, True, True], [False] * 4]))


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_encoder_by_hand(text: Text, cosine: bool, scaled: bool):
    """g1 o + m gamma CA(LN(o), t): LayerScale does not apply to the words."""
    module = EncoderAlignment(DIM, TEXT_DIM, HEADS, config(cosine))
    lively(module)
    branch = torch.randn(*GRID, DIM)
    layer_scale = torch.randn(DIM) if scaled else None
    found = module(branch, module.words(text), layer_scale)
    norm = module.norm
    for sample in range(2):
        o, words = branch[sample], text.embeddings[sample][text.mask[sample]]
        queries = F.layer_norm(o, (DIM,), norm.weight, norm.bias, 1e-5)
        expected = o if layer_scale is None else layer_scale * o
        expected = expected + module.gate * cross_attention(
            module.attention, queries, words, cosine
        )
        torch.testing.assert_close(found[sample], expected)


@pytest.mark.parametrize("cosine", [True, False])
def test_decoder_by_hand(text: Text, cosine: bool):
    """y = x + m alpha CA(LN1(x), t), out = y + m beta FFN(LN2(y))."""
    module = DecoderAlignment(DIM, TEXT_DIM, HEADS, config(cosine))
    lively(module)
    x = torch.randn(*GRID, DIM)
    found, _ = module(x, module.words(text))
    one, two, ffn = module.norm_attention, module.norm_ffn, module.ffn
    words = text.embeddings[0][text.mask[0]]
    queries = F.layer_norm(x[0], (DIM,), one.weight, one.bias, 1e-5)
    y = x[0] + module.gate * cross_attention(module.attention, queries, words, cosine)
    hidden = ffn.expand(F.layer_norm(y, (DIM,), two.weight, two.bias, 1e-5))
    hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
    torch.testing.assert_close(found[0], y + module.gate_ffn * ffn.contract(hidden))
    assert torch.equal(found[1], x[1])


def test_length_and_mean_of_word_vectors_do_not_matter():
    """One LayerNorm of the text, once per model; the original has none."""
    rgb, depth = pictures()
    text = some_text(3, 2)
    louder = TextBatch(4 * text.embeddings + 2, text.mask)
    with torch.no_grad():
        for form, alike in (("gated", True), ("legacy", False)):
            model = tiny_model(**{"sam.form": form})
            found, other = (model(rgb, depth, None, t).logits for t in (text, louder))
            assert torch.allclose(found, other, atol=1e-4) is alike


@pytest.mark.parametrize("form", ["gated", "legacy"])
def test_block_uses_the_module_of_its_group(form: str):
    """Block b uses module b // group with the keys of that module."""
    encoder = tiny_model(**{"sam.form": form, "sam.encoder.groups": (1, 1, 2, 1)}).encoder
    stage, modules = encoder.stages[2], list(encoder.align["2"])
    assert (len(stage.blocks), len(modules)) == (3, 2)
    batch = some_text(3, 1)
    text, x = Text(batch.embeddings, batch.mask), torch.randn(2, 5, 6, 48)
    with torch.no_grad():
        whole = stage(x, None, modules, text, 2)
        by_hand, first_only = x, x
        for block, module in zip(list(stage.blocks), (0, 0, 1), strict=True):
            stage.blocks = nn.ModuleList([block])
            by_hand = stage(by_hand, None, [modules[module]], text)
            first_only = stage(first_only, None, [modules[0]], text)
    torch.testing.assert_close(whole, by_hand)
    assert (whole - first_only).abs().max() > 1e-2


def test_every_stage_has_its_own_groups():
    model = tiny_model(**{"sam.encoder.groups": (1, 1, 2, 1)})
    called: list[str] = []
    for path, module in model.encoder.align.named_modules():
        if isinstance(module, SemanticAlignment):
            module.register_forward_hook(lambda *_, path=path: called.append(path))
    model(*pictures(), None, some_text(3, 1))
    assert called == ["1.0", "1.1", "2.0", "2.0", "2.1", "3.0", "3.1"]
