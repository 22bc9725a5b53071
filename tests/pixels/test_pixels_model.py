"""The whole model: effects of words and depth, gradients, maps, invalid input."""

import itertools
import re

import pytest
import torch
from pixel_cases import pictures, some_text, tiny_config, tiny_model
from torch import Tensor

from eligo.errors import InputError
from eligo.nn import SimilarityScale
from eligo.pixels import PRESETS, PixelsModel, TextBatch, segmentation_loss
from eligo.train import OptimizerConfig
from eligo.train.optimization import parameter_groups
from strategies import production

FORMS = ("gated", "legacy")
MODES = list(itertools.product(("cosine", "dot"), (1.0, 14.285714)))


def logits(model: PixelsModel, *inputs, **options) -> Tensor:
    with torch.no_grad():
        return model(*inputs, **options).logits


def learnable(similarity: str, init: float, form: str = "gated") -> dict:
    sides = [
        {
            f"sam.{side}.use_cosine": similarity == "cosine",
            f"sam.{side}.learnable_temp": True,
            f"sam.{side}.logit_init": init,
        }
        for side in ("encoder", "decoder")
    ]
    return {**sides[0], **sides[1], "sam.form": form}


def test_words_and_depth_change_the_output():
    model = tiny_model()
    rgb, depth = pictures()
    text, mask = some_text(3, 5), torch.rand(2, 1, 64, 96) < 0.5
    plain = logits(model, rgb)
    for other in (
        logits(model, rgb, depth),
        logits(model, rgb, depth, mask),
        logits(model, rgb, text=text),
    ):
        assert (other - plain).abs().max() > 1e-3


@pytest.mark.parametrize("preset", range(1, 7))
def test_samples_without_words_are_unchanged(preset: int):
    """Sample 1 has no words: the words of other samples do not change a bit of its output."""
    model = tiny_model(**PRESETS[preset])
    rgb, depth = pictures(3)
    silent = logits(model, rgb, depth)
    found = logits(model, rgb, depth, None, some_text(4, 0, 1))
    assert torch.equal(found[1], silent[1])
    assert not torch.equal(found[0], silent[0])
    assert torch.equal(logits(model, rgb, depth, None, some_text(0, 0, 0)), silent)
    assert torch.equal(logits(model, rgb, depth, None, some_text(0, 0, 0, words=0)), silent)


def test_samples_without_words_are_unchanged_in_training():
    """The same gradient as without text, sample by sample."""
    model = tiny_model(**{"head.dropout": 0.0})
    bases = model.head.hamburger.bases[None]
    rgb, depth = pictures()
    found = []
    for text in (None, some_text(0, 0)):
        x = rgb.clone().requires_grad_()
        model(x, depth, None, text, bases=bases).logits.square().sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_legacy_form_changes_samples_without_words():
    """In the legacy form, a sample without words depends on the words of others."""
    model = tiny_model(**{"sam.form": "legacy"})
    rgb, depth = pictures()
    alone = logits(model, rgb, depth, None, some_text(0, 0))
    beside = logits(model, rgb, depth, None, some_text(0, 3))
    bias = model.head.align["1"].attention.out_proj.bias
    assert torch.equal(alone[0], beside[0]) == bool((bias == 0).all())
    with torch.no_grad():
        bias.fill_(0.5)
    beside = logits(model, rgb, depth, None, some_text(0, 3))
    assert not torch.allclose(alone[0], beside[0])


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_a_batch_are_independent(form: str):
    model = tiny_model(**{"sam.form": form})
    rgb, depth = pictures(3)
    mask, text = torch.rand(3, 1, 64, 96) < 0.7, some_text(4, 2, 5)
    together = logits(model, rgb, depth, mask, text)
    for index in range(3):
        one = slice(index, index + 1)
        own = TextBatch(text.embeddings[one], text.mask[one])
        alone = logits(model, rgb[one], depth[one], mask[one], own)
        torch.testing.assert_close(alone, together[one], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_padding_and_order_of_words_do_not_matter(form: str):
    model = tiny_model(**{"sam.form": form})
    rgb, depth = pictures()
    text = some_text(3, 2, words=4)
    expected = model(rgb, depth, None, text)
    noise = torch.where(text.mask[..., None], text.embeddings, 1e6 * torch.randn(2, 4, 24))
    longer = TextBatch(torch.cat((noise, torch.randn(2, 3, 24)), 1), torch.zeros(2, 7).bool())
    longer.mask[:, :4] = text.mask
    order = torch.tensor([3, 1, 0, 2])
    moved = TextBatch(text.embeddings[:, order], text.mask[:, order])
    for other, places in ((longer, torch.arange(4)), (moved, order.argsort())):
        found = model(rgb, depth, None, other)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            found.tag_maps[:, places], expected.tag_maps, atol=1e-5, rtol=1e-4
        )


def test_padding_gets_no_gradient():
    model = tiny_model()
    text = some_text(3, 0)
    embeddings = text.embeddings.masked_fill(~text.mask[..., None], float("inf"))
    model(*pictures(), None, TextBatch(embeddings, text.mask)).logits.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_no_depth_equals_constant_depth():
    model = tiny_model()
    rgb, _ = pictures()
    plain = logits(model, rgb)
    constant = torch.full((2, 1, 64, 96), 1.7)
    unknown = torch.zeros(2, 1, 64, 96, dtype=torch.bool)
    nothing = torch.full_like(constant, float("nan"))
    for depth, mask in ((constant, None), (torch.randn(2, 1, 64, 96), unknown), (nothing, unknown)):
        torch.testing.assert_close(logits(model, rgb, depth, mask), plain, atol=1e-5, rtol=1e-5)


def test_unknown_depth_has_no_effect():
    model = tiny_model(**{"encoder.depth_stem": True})
    torch.nn.init.normal_(model.encoder.depth_stem.weight)
    rgb, depth = pictures()
    mask = torch.rand(2, 1, 64, 96) < 0.6
    other = torch.where(mask, depth, float("nan"))
    assert torch.equal(logits(model, rgb, depth, mask), logits(model, rgb, other, mask))
    everywhere = torch.ones_like(mask)
    torch.testing.assert_close(
        logits(model, rgb, depth, everywhere), logits(model, rgb, depth), atol=1e-5, rtol=1e-5
    )


def test_depth_stem_starts_at_zero_and_learns():
    changes = {"encoder.depth_stem": True}
    with_stem, without = tiny_model(**changes), tiny_model()
    state = with_stem.state_dict()
    stem = state.pop("encoder.depth_stem.weight")
    assert stem.shape == (3, 2, 3, 3)
    assert not stem.any()
    without.load_state_dict(state)
    rgb, depth = pictures()
    assert torch.equal(logits(with_stem, rgb, depth), logits(without, rgb, depth))
    with_stem(rgb, depth).logits.square().sum().backward()
    assert with_stem.encoder.depth_stem.weight.grad.abs().min() > 0
    torch.nn.init.normal_(with_stem.encoder.depth_stem.weight)
    assert torch.equal(logits(with_stem, rgb), logits(without, rgb))  # no depth, no effect
    assert not torch.allclose(logits(with_stem, rgb, depth), logits(without, rgb, depth))


def test_only_channel_0_of_depth_is_read():
    model = tiny_model()
    rgb, depth = pictures()
    three = torch.cat((depth, torch.randn(2, 2, 64, 96)), 1)
    assert torch.equal(logits(model, rgb, three), logits(model, rgb, depth))


@pytest.mark.parametrize(("similarity", "init"), MODES)
def test_learnable_temperature_learns(similarity: str, init: float):
    """With the initial gates, in encoder and decoder."""
    model = PixelsModel(tiny_config(**learnable(similarity, init)))
    model(*pictures(), None, some_text(3, 5)).logits.square().sum().backward()
    scales = [m.log_scale for m in model.modules() if isinstance(m, SimilarityScale)]
    assert len(scales) == 1 + 1 + 1 + 3
    assert all(scale.grad.abs() > 0 for scale in scales)


def test_legacy_temperature_never_changes():
    model = tiny_model(**learnable("cosine", 14.285714, "legacy"))
    model(*pictures(), None, some_text(3, 5)).logits.square().sum().backward()
    scales = [m.log_scale for m in model.modules() if isinstance(m, SimilarityScale)]
    assert len(scales) == 6
    assert all(scale.grad == 0 for scale in scales)
    live = tiny_model(**learnable("cosine", 1.0, "legacy"))
    live(*pictures(), None, some_text(3, 5)).logits.square().sum().backward()
    scales = [m.log_scale for m in live.modules() if isinstance(m, SimilarityScale)]
    assert all(scale.grad.abs() > 0 for scale in scales)


@pytest.mark.parametrize("form", FORMS)
def test_every_parameter_gets_a_gradient(form: str):
    """With all modules; in eval mode, because BatchNorm cancels the biases before it."""
    changes = {
        **learnable("cosine", 1.0, form),
        "encoder.depth_stem": True,
        "encoder.layer_scale": (0.5,) * 4,
        "sam.encoder.stages": (0, 1, 2, 3),
    }
    model = tiny_model(**changes)
    torch.nn.init.normal_(model.encoder.depth_stem.weight)
    labels = torch.randint(0, 5, (4, 64, 96))
    output = model(*pictures(4), None, some_text(3, 5, 2, 4))
    segmentation_loss(output.logits, labels).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        own = {name: gradients[f"{path}.{name}"] for name, _ in module.named_parameters("", False)}
        if path.endswith("attention.qkv"):  # softmax cancels the bias of k
            query, _, value = own.pop("bias").chunk(3)
            own |= {"query bias": query, "value bias": value}
        largest = max((gradient.abs().max() for gradient in own.values()), default=0)
        for name, gradient in own.items():
            assert gradient.abs().max() > 1e-5 * largest, f"{path}.{name}"


def test_optimiser_groups():
    changes = {"encoder.layer_scale": (1e-6,) * 4, **learnable("cosine", 5.0)}
    model = PixelsModel(tiny_config(**changes))
    groups = parameter_groups({"model": model}, OptimizerConfig(lr=1e-3, weight_decay=0.01))
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    fast = re.compile(r"log_scale|gate(_ffn)?$|prior_weights")
    for name, parameter in model.named_parameters():
        lr, decay = found[id(parameter)]
        assert lr == pytest.approx(1e-2 if fast.search(name) else 1e-3), name
        assert decay == (0.01 if parameter.ndim > 1 else 0.0), name
    single = [n for n, p in model.named_parameters() if fast.search(n) and p.ndim > 1]
    assert not single


def test_scales_stay_in_bounds():
    model = PixelsModel(tiny_config(**learnable("dot", 99.0)))
    scales = [m for m in model.modules() if isinstance(m, SimilarityScale)]
    for scale in scales:
        scale.log_scale.data.add_(3.0)
        scale.project_()
        assert scale.scale.item() == pytest.approx(100.0, rel=1e-5)


def test_temperatures_are_reported():
    found = PixelsModel(tiny_config()).temperatures()
    assert found["scale/head.align.1"].item() == pytest.approx(14.285714)
    assert found["gate/encoder.align.2.0"].item() == pytest.approx(1e-3)
    assert found["gate_ffn/head.align.3"].item() == pytest.approx(1e-3)
    assert len(found) == 2 * 3 + 3 * 3


def test_selection_and_maps():
    model = tiny_model()
    output = model(*pictures(3), None, some_text(4, 0, 1))
    assert output.tag_maps.shape == (3, 5, 8, 12)
    total = output.tag_maps.sum(1)
    torch.testing.assert_close(total[[0, 2]], torch.ones(2, 8, 12))
    assert not output.tag_maps[1].any()
    selection = output.selection
    assert selection.num_kept.tolist() == [4, 0, 1]
    torch.testing.assert_close(selection.scores, output.tag_maps.mean((2, 3)))
    ranked = selection.scores[0][selection.indices[0, :4]]
    assert torch.equal(ranked, ranked.sort(descending=True).values)
    assert 0 < output.entropy[0] <= torch.tensor(4.0).log() + 1e-6
    assert output.entropy[1] == output.entropy[2] == 0
    silent = model(*pictures(3))
    assert (silent.selection, silent.tag_maps, silent.entropy) == (None, None, None)


def test_returning_maps_does_not_change_the_output():
    """The explicit softmax of the maps and the fused path agree."""
    model = tiny_model()
    inputs = (*pictures(), None, some_text(3, 5))
    torch.testing.assert_close(
        logits(model, *inputs, maps=False), logits(model, *inputs), atol=1e-4, rtol=1e-4
    )
    assert model(*inputs, maps=False).tag_maps is None


def test_maps_of_the_finest_level_with_words():
    model = tiny_model(**{"sam.decoder.stages": (2, 3)})
    assert model(*pictures(), None, some_text(3, 5)).tag_maps.shape == (2, 5, 4, 6)
    model = tiny_model(**{"sam.decoder.stages": ()})
    assert model(*pictures(), None, some_text(3, 5)).tag_maps is None


def test_top_m_keeps_one_word_per_head():
    model = tiny_model(**{"sam.decoder.top_m": 1})
    maps = model(*pictures(), None, some_text(5, 3)).tag_maps
    assert set((2 * maps).unique().tolist()) <= {0.0, 1.0, 2.0}  # two heads, one word each


def test_text_mask_of_the_legacy_form():
    changes = {"sam.form": "legacy", "sam.legacy_text_mask": True}
    model = tiny_model(**changes)
    text = some_text(3, 2)
    zeroed = text.embeddings.masked_fill(~text.mask[..., None], 0.0)
    rgb, depth = pictures()
    everywhere = TextBatch(zeroed, torch.ones(2, 5, dtype=torch.bool))
    assert torch.equal(
        logits(model, rgb, depth, None, everywhere), logits(model, rgb, depth, None, text)
    )


def test_evaluation_is_repeatable_and_training_is_not():
    model = tiny_model(**{"head.dropout": 0.0})
    inputs = (*pictures(), None, some_text(3, 5))
    assert torch.equal(logits(model, *inputs), logits(model, *inputs))
    again = PixelsModel(model.config).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(logits(again, *inputs), logits(model, *inputs))
    model.train()
    assert not torch.equal(logits(model, *inputs), logits(model, *inputs))  # random bases
    bases = torch.rand(1, 24, 8)
    assert torch.equal(logits(model, *inputs, bases=bases), logits(model, *inputs, bases=bases))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (33, 47), (70, 101)])
def test_images_of_any_size(height: int, width: int):
    rgb, depth = pictures(1, height, width)
    found = logits(tiny_model(), rgb, depth, None, some_text(2))
    assert found.shape == (1, 5, height, width)
    assert found.isfinite().all()


def test_float32_logits_under_autocast():
    model = tiny_model()
    inputs = (*pictures(), None, some_text(3, 5))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*inputs)
    assert output.logits.dtype == output.tag_maps.dtype == torch.float32
    exact = logits(model, *inputs)
    gap = (output.logits - exact).abs().mean() / exact.abs().mean()
    assert 0 < gap < 0.1


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(1, 3, 31, 64),), "at least 32 x 32"),
        ((torch.zeros(1, 3, 64, 64), torch.zeros(1, 1, 64, 60)), "same batch, height and width"),
        ((torch.zeros(1, 3, 64, 64), None, torch.ones(1, 1, 64, 64).bool()), "without depth"),
        ((torch.zeros(1, 3, 64, 64), None, None, some_text(1, dim=25)), "25 wide, expected"),
        ((torch.zeros(1, 3, 64, 64), None, None, some_text(1, 2)), "got 2 samples"),
    ],
)
def test_invalid_inputs_are_refused(inputs: tuple, message: str):
    with production(), pytest.raises(InputError, match=message):
        tiny_model()(*inputs)


def test_text_batch_operations_and_checks():
    text = TextBatch(torch.randn(2, 2, 4), torch.ones(2, 2).bool(), (("a", "b"), ("c", "d")))
    dropped = text.without(torch.tensor([True, False]))
    assert dropped.words == ((), ("c", "d"))
    assert dropped.mask.tolist() == [[False, False], [True, True]]
    padded = TextBatch(torch.randn(1, 3, 4), torch.tensor([[True, False, True]]), (("a", "b"),))
    assert padded.only(torch.tensor([[False, True, True]])).words == (("b",),)
    assert text.to("meta").embeddings.is_meta
    with production(), pytest.raises(InputError, match="expected"):
        TextBatch(torch.randn(2, 2, 4), torch.ones(2, 3).bool())
    embeddings = torch.randn(2, 2, 4)
    embeddings[1, 0, 3] = float("nan")
    with pytest.raises(InputError, match="NaN or infinity in word 0 of sample 1"):
        TextBatch(embeddings, torch.ones(2, 2).bool())
    TextBatch(embeddings, torch.tensor([[True, True], [False, True]]))
    with production(), pytest.raises(InputError, match="words of 1 images"):
        TextBatch(torch.randn(2, 2, 4), torch.ones(2, 2).bool(), (("a",),))
