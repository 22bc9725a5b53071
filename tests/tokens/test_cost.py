"""Costs: published numbers, the counter of torch on real forward passes, invalid schedules."""

import json
import math

import pytest
import torch
from hosts import FAMILIES
from hosts import build as tiny_host
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    InternVLConfig,
    InternVLForConditionalGeneration,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from eligo.errors import InputError
from eligo.tokens.cost.flops import Measured, Schedule, SelectorCost, count_cost
from eligo.tokens.cost.shapes import LLAVA_7B, HostShape, LayerShape, shape_of

GUIDE = Schedule(576, 288, ((10, 200), (20, 150), (31, 100)), 100, 32)
DEFAULT = Schedule(576, 288, ((2, 200), (8, 150), (16, 100)), 100, 32)
IMAGE = 98
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "head_dim": 24,
    "pad_token_id": 0,
}
WITHOUT_HEAD_SIZE = {name: value for name, value in TEXT.items() if name != "head_dim"}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}


def test_late_cuts_save_less_than_the_target():
    cost = count_cost(LLAVA_7B, GUIDE)
    assert f"{cost.reduction_llm:.1%}" == "54.9%"
    assert f"{cost.cut_savings[2]:.1%}" == "0.2%"
    notes = cost.warnings(target=0.6)
    assert len(notes) == 2
    assert "saves 54.9% of the language model, not the target of 60.0%" in notes[0]
    assert "the cut to 100 at layer 31 saves only 0.2%" in notes[1]


def test_cost_of_the_default_plan():
    cost = count_cost(LLAVA_7B, DEFAULT)
    assert f"{cost.reduction_llm:.1%}" == "64.4%"
    assert cost.mean_length == 243
    assert f"{1 - cost.vision_keep_mean:.0%}" == "75%"
    assert cost.kv_bytes_full == 338 * 2**20
    assert round(cost.kv_bytes / 2**20) == 122
    assert cost.warnings(target=0.6) == []
    longer = count_cost(LLAVA_7B, Schedule(576, 288, DEFAULT.cuts, 200, 32))
    assert f"{longer.reduction_llm:.0%}" == "56%"
    assert "200 text tokens are always kept" in longer.warnings(target=0.6)[0]


def test_flops_formula_by_hand():
    layer = LayerShape(width=8, hidden=16, heads=2, kv_heads=1, head_size=4)
    n, d, f, h, kv, e = 5, 8, 16, 2, 1, 4
    products = n * d * (2 * h * e + 2 * kv * e) + 3 * n * d * f
    assert layer.flops(n) == 2 * (products + h * e * n * (n + 1))
    assert layer.flops(n, causal=False) == 2 * (products + 2 * h * e * n * n)
    assert layer.flops(n, causal=False, window=2) == 2 * (products + 2 * h * e * n * 2)
    assert layer.cached_values == 8


def llava():
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", **TOWER},
        text_config={"model_type": "llama", **TEXT},
        image_token_index=IMAGE,
    )
    return LlavaForConditionalGeneration(config), 16, {"pixel_values": torch.randn(1, 3, 56, 56)}


def internvl():
    config = InternVLConfig(
        vision_config={**TOWER, "image_size": [56, 56], "patch_size": [14, 14]},
        text_config={"model_type": "qwen2", **WITHOUT_HEAD_SIZE},
        image_token_id=IMAGE,
    )
    pixels = {"pixel_values": torch.randn(1, 3, 56, 56)}
    return InternVLForConditionalGeneration(config), 4, pixels


def paligemma():
    config = PaliGemmaConfig(
        vision_config={
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
            "projection_dim": 64,
            **TOWER,
        },
        text_config={"model_type": "gemma", **TEXT},
        image_token_index=IMAGE,
        projection_dim=64,
    )
    pixels = {"pixel_values": torch.randn(1, 3, 56, 56)}
    return PaliGemmaForConditionalGeneration(config), 16, pixels


def smolvlm():
    config = SmolVLMConfig(
        vision_config=TOWER,
        text_config={"model_type": "llama", **TEXT},
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )
    pixels = {"pixel_values": torch.randn(1, 2, 3, 56, 56)}  # two tiles of four tokens
    return SmolVLMForConditionalGeneration(config), 8, pixels


def qwen2_5_vl():
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    rope = {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 10000.0}
    config = Qwen2_5_VLConfig(
        vision_config=vision,
        text_config={**WITHOUT_HEAD_SIZE, "hidden_size": 96, "rope_parameters": rope},
        image_token_id=IMAGE,
        vision_start_token_id=96,
        vision_end_token_id=97,
    )
    config.vision_config.out_hidden_size = 96
    pixels = {
        "pixel_values": torch.randn(64, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, 8, 8]]),
    }
    return Qwen2_5_VLForConditionalGeneration(config), 16, pixels


TOWERS = ("vision_tower", "vision_model", "visual")
PROJECTORS = ("multi_modal_projector", "connector", "visual.merger")


@pytest.mark.parametrize("build", [llava, internvl, paligemma, smolvlm, qwen2_5_vl])
def test_flops_agree_with_the_counter_of_torch(build):
    """Torch counts causal attention as bidirectional, so the bidirectional formula applies."""
    model, vision, pixels = build()
    model.eval().set_attn_implementation("eager")
    text = 9
    ids = torch.full((1, vision + text), 7)
    ids[:, 3 : 3 + vision] = IMAGE
    counter = FlopCounterMode(display=False)
    extra = {"mm_token_type_ids": (ids == IMAGE).int()} if build is qwen2_5_vl else {}
    with torch.no_grad(), counter:
        model(input_ids=ids, **pixels, **extra)
    counted = {
        name.partition(".model.")[2]: sum(parts.values())
        for name, parts in counter.get_flop_counts().items()
    }
    shape = HostShape.of(model)
    layers = shape.num_layers * shape.layer.flops(vision + text, causal=False)
    text_model = "language_model" if "language_model" in counted else "text_model"
    angles = counted.get(f"{text_model}.rotary_emb", 0)  # a matrix product in some versions only
    assert layers == counted[text_model] - angles
    projector = next(counted[name] for name in PROJECTORS if name in counted)
    tower = next(counted[name] for name in TOWERS if name in counted)
    if build is qwen2_5_vl:  # its merger is part of the tower's module
        tower -= projector
    assert shape.projector_flops(vision) == projector
    assert shape.tower_flops(vision) == tower
    assert shape.vision in (None, vision, vision // 2)


@pytest.mark.parametrize("family", FAMILIES[5:])
def test_flops_of_other_hosts_agree_with_the_counter(family):
    host = tiny_host(family, "eager")
    inputs = host.batch([[3, "image", 6]])
    vision = sum(math.prod(grid) for grid in host.grids("image"))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        host.model(**inputs)
    counted = {
        name.partition(".model.")[2]: sum(parts.values())
        for name, parts in counter.get_flop_counts().items()
    }
    shape = HostShape.of(host.model)
    text = "text_model" if "text_model" in counted else "language_model"
    layers = sum(counted[f"{text}.layers.{index}"] for index in range(shape.num_layers))
    assert shape.num_layers * shape.layer.flops(vision + 9, causal=False) == layers
    # Newlines and borders count like tokens of tiles: here all three tiles are whole.
    vision = 3 * 16 if host.style == "tiles" else vision
    tower = next(counted[name] for name in TOWERS if name in counted)
    if host.style == "grid":
        parts = ("merger", "downsample", *(f"deepstack_merger_list.{n}" for n in (0, 1)))
        projector = sum(counted.get(f"visual.{part}", 0) for part in parts)
        tower -= projector
    else:
        projector = next(counted[name] for name in PROJECTORS if name in counted)
    assert shape.projector_flops(vision) == projector
    assert shape.tower_flops(vision) == tower
    assert shape.vision in (None, vision)


def test_flops_of_a_pruned_forward_pass_agree_with_the_counter():
    """Each layer of a language model runs on the length that its schedule gives."""
    model = llava()[0].eval()
    model.set_attn_implementation("eager")
    schedule = Schedule(16, 10, ((1, 6), (2, 3)), 9, 3)
    text = model.model.language_model
    shape = shape_of(model.config)
    total = 0
    for length, layer in zip(schedule.lengths, text.layers, strict=True):
        states = torch.randn(1, length, 64)
        rotary = text.rotary_emb(states, torch.arange(length)[None])
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer(states, position_embeddings=rotary, attention_mask=None)
        total += counter.get_total_flops()
    assert total == sum(shape.layer.flops(n, causal=False) for n in schedule.lengths)


class _Known:
    name = "known"

    def flops(self, num_tokens, num_words, width, question_width, budget):
        return num_tokens * 1e9 + num_words * 1e6 + width * 1e3 + budget


class _Silent:
    name = "silent"


def test_selector_reduces_the_saving():
    assert isinstance(_Known(), SelectorCost)
    assert not isinstance(_Silent(), SelectorCost)
    cost = count_cost(LLAVA_7B, DEFAULT, selectors=[_Known(), _Silent(), None, _Known()])
    merge = 576e9 + 100e6 + 1024e3 + 288
    last = 150e9 + 100e6 + 4096e3 + 100
    assert cost.selector == pytest.approx(merge + last)
    assert cost.uncounted == ("silent",)
    assert cost.reduction_with_selector < cost.reduction_llm
    assert "(without silent)" in cost.line()
    assert "with selector" in cost.line()
    unknown = count_cost(LLAVA_7B, DEFAULT, selectors=[_Silent(), None, None, None])
    assert unknown.selector is None
    assert "selector not counted (silent), LLM" in unknown.line()
    assert "with selector" not in unknown.line()
    greedy = count_cost(LLAVA_7B, GUIDE, selectors=[_Greedy(), None, None, None])
    assert "the selector costs more than it saves" in greedy.warnings()[-1]
    with pytest.raises(InputError, match="got 2 selectors, expected 4"):
        count_cost(LLAVA_7B, DEFAULT, selectors=[None, None])


class _Greedy(_Known):
    def flops(self, num_tokens, num_words, width, question_width, budget):
        return 1e14


def test_cost_as_one_printed_line():
    cost = count_cost(LLAVA_7B, DEFAULT)
    assert cost.line() == (
        "vision 576>288>200>150>100 @ 0,2,8,16 | text 100 | mean length 243 of 676 | "
        "TFLOPs ViT 0.382, projector 0.0242 > 0.0362, LLM 8.88 > 3.16 | "
        "reduction LLM 64.4%, total 61.4% | KV 338 > 122 MiB in bfloat16"
    )
    assert cost.block() == cost.line().replace(" | ", "\n")
    measured = Measured(
        selector_ms=1.25, ttft_p50_ms=40.0, ttft_p90_ms=44.5, decode_ms=9.0, peak_mib=15e3, batch=8,
        dtype="bfloat16", backend="sdpa", device="NVIDIA H200",
    )  # fmt: skip
    line = count_cost(LLAVA_7B, DEFAULT, measured=measured).line()
    assert line.endswith(
        "| selector 1.25 ms, TTFT p50/p90 40/44.5 ms, decode 9 ms/token, peak 15000 MiB "
        "| batch 8, bfloat16, sdpa, NVIDIA H200"
    )
    some = count_cost(LLAVA_7B, DEFAULT, measured=Measured(ttft_p50_ms=40.0)).line()
    assert some.endswith("| TTFT p50 40 ms")


def test_plain_data_leaves_out_unknown_values():
    plain = count_cost(LLAVA_7B, DEFAULT).as_plain()
    assert json.loads(json.dumps(plain))["vision_keep_layer_16"] == 100 / 576
    assert "measured" not in plain
    assert plain["selector"] is None
    timed = count_cost(LLAVA_7B, DEFAULT, measured=Measured(decode_ms=1.0)).as_plain()
    assert timed["measured"] == {"decode_ms": 1.0}


def test_merged_features_are_projected_again():
    cost = count_cost(LLAVA_7B, DEFAULT)
    assert cost.projector == pytest.approx(1.5 * cost.projector_full)
    cut = count_cost(LLAVA_7B, Schedule(576, 576, DEFAULT.cuts, 100, 32))
    assert cut.projector == cut.projector_full
    shape = shape_of(qwen2_5_vl()[0].config)  # its tower returns projected features
    whole = count_cost(shape, Schedule(4, 2, (), 5, 3))
    assert whole.projector == whole.projector_full
    assert shape.feature_width == 96
    assert LLAVA_7B.feature_width == 1024
    assert shape_of(smolvlm()[0].config).feature_width == 4 * 32


@given(st.integers(1, 576), st.integers(0, 300), st.data())
def test_dropping_tokens_never_costs_more(merged, text, data):
    layers = sorted(data.draw(st.sets(st.integers(1, 31), max_size=4)))
    budgets = sorted(data.draw(st.tuples(*(st.integers(1, merged) for _ in layers))), reverse=True)
    schedule = Schedule(576, merged, tuple(zip(layers, budgets, strict=True)), text, 32)
    cost = count_cost(LLAVA_7B, schedule)
    assert 0 <= cost.reduction_llm < 1
    assert all(saved >= 0 for saved in cost.cut_savings)
    assert cost.kv_bytes <= cost.kv_bytes_full
    assert list(schedule.lengths) == sorted(schedule.lengths, reverse=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merged": 0}, "expected 1 or more"),
        ({"merged": 600}, "at most the one before"),
        ({"cuts": ((2, 0),)}, "expected 1 or more"),
        ({"cuts": ((2, 100), (8, 150))}, "at most the one before"),
        ({"cuts": ((8, 200), (2, 150))}, "expected rising layers from 1 to 31"),
        ({"cuts": ((2, 200), (2, 150))}, "expected rising layers"),
        ({"cuts": ((0, 200),)}, "layer 0 is never cut"),
        ({"cuts": ((32, 200),)}, "expected rising layers"),
        ({"text": -1}, "-1 of text"),
    ],
)
def test_invalid_schedules_are_refused(changes, message):
    good = {"vision": 576, "merged": 288, "cuts": (), "text": 100, "num_layers": 32}
    with pytest.raises(InputError, match=message):
        Schedule(**{**good, **changes})


def test_invalid_input_is_refused(tmp_path):
    with pytest.raises(InputError, match="has 32"):
        count_cost(LLAVA_7B, Schedule(576, 288, (), 100, 12))
    with pytest.raises(InputError, match="dtype 'int7'"):
        count_cost(LLAVA_7B, DEFAULT, dtype="int7")
    with pytest.raises(InputError, match="known hosts: llava"):
        shape_of(LlavaConfig().text_config)
    with pytest.raises(InputError, match="there is no such folder"):
        HostShape.load(tmp_path / "nothing")


def test_shipped_and_default_shapes(tmp_path):
    LlavaConfig(text_config={"model_type": "llama"}).save_pretrained(tmp_path)
    shape = HostShape.load(tmp_path)
    assert (shape.layer, shape.tower, shape.projector) == (
        LLAVA_7B.layer, LLAVA_7B.tower, LLAVA_7B.projector,
    )  # fmt: skip
