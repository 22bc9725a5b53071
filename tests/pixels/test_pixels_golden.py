"""Parity with the original implementations: prior, blocks, encoder, alignment, metrics."""

import json
import math

import pytest
import torch
from pixel_cases import GOLDEN, golden, under
from torch import Tensor

from eligo.pixels import EncoderConfig, confusion_matrix, from_official, segmentation_metrics
from eligo.pixels.config import SamConfig
from eligo.pixels.model.alignment import DecoderAlignment, EncoderAlignment, SemanticAlignment
from eligo.pixels.model.block import Block
from eligo.pixels.model.geometry import (
    Depth,
    column_distances,
    full_distances,
    head_decay,
    prior_rates,
    resize_depth,
    rotary_frequencies,
    rotary_tables,
    row_distances,
    stage_geometry,
    stage_tables,
)
from eligo.pixels.model.official import _ALIGN, _encoder_names
from eligo.pixels.text.batch import Text, legacy_text_mask
from eligo.train import ScheduleConfig, lr_factor

CPU = torch.device("cpu")
SAM = golden("sam_small")
META = json.loads((GOLDEN / "sam_small_meta.json").read_text())
CASES = sorted({key.removesuffix(".attn") for key in SAM if key.endswith(".attn")})
INITS = {"init14.29": 1 / 0.07, "init1": 1.0, "init100": 100.0}


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("kind", "head_dim", "spread"), [("split", 16, 4.0), ("full", 32, 6.0)])
def test_prior_matches_the_original(kind: str, head_dim: int, spread: float):
    tensors = under(golden("geo_prior"), f"{kind}.")
    height, width = tensors["sin"].shape[:2]
    decay, frequencies = head_decay(4, spread), rotary_frequencies(head_dim)
    sin, cos = rotary_tables(height, width, frequencies)
    for name, found in {"angle": frequencies, "sin": sin, "cos": cos}.items():
        assert torch.equal(found, tensors[name]), name
    # The logarithm: CPUs differ in the last bit.
    last_bit = torch.finfo(torch.float32).eps * tensors["decay"].abs()
    assert ((decay - tensors["decay"]).abs() <= last_bit).all()
    depth = resize_depth(Depth(tensors["depth"], None), (height, width))
    weights = tensors["weight"].flatten()
    if kind == "full":
        found = full_distances(height, width, depth, CPU).bias(prior_rates(decay, weights))
        close(found.squeeze(1), tensors["mask"])
    else:
        rows = row_distances(width, depth, CPU).bias(prior_rates(decay, weights))
        close(rows.transpose(1, 2), tensors["mask_w"])
        columns = column_distances(height, depth, CPU).bias(prior_rates(decay, weights))
        close(columns.transpose(1, 2), tensors["mask_h"])


@pytest.mark.parametrize("kind", ["decomposed", "full"])
def test_block_matches_the_original(kind: str):
    tensors = under(golden("rgbd_block"), f"{kind}.")
    block = Block(32, 4, 96, layer_scale=1.0 if kind == "full" else None).eval()
    state = under(tensors, "state.")
    ours = {}
    for name, value in block.state_dict().items():
        prefix = "layers.0.blocks.0."
        theirs = [key.removeprefix(prefix) for key in _encoder_names(f"stages.0.blocks.0.{name}")]
        ours[name] = torch.cat([state[key] for key in theirs]).reshape(value.shape)
    block.load_state_dict(ours)
    tables = stage_tables((6, 8), num_heads=4, head_dim=8, spread=4.0, device=CPU)
    geometry = stage_geometry((6, 8), Depth(tensors["depth"], None), tables, full=kind == "full")
    x = tensors["x"]
    lifted = block.norm_attention(x + block.position(x))
    close(block.attention(lifted, geometry, block.prior_weights), tensors["attn_out"])
    close(block(x, geometry), tensors["y"])


def test_encoder_matches_the_original():
    tensors = golden("encoder_tiny_official")
    config = EncoderConfig(
        dims=(16, 32, 48, 64),
        depths=(1, 2, 3, 2),
        heads=(2, 2, 3, 4),
        layer_scale=(None, None, 1e-6, 1e-6),
    )
    encoder = from_official(under(tensors, "state."), config)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 258_776
    for index, found in enumerate(encoder(tensors["in.rgb"], tensors["in.depth"])):
        close(found, tensors[f"out.{index}"], 5e-5)


def alignment(
    side: str, *, cosine: bool, learnable: bool, init: float, top_m: int | None = None
) -> SemanticAlignment:
    """The legacy module of one golden case."""
    modes = {"use_cosine": cosine, "learnable_temp": learnable, "logit_init": init}
    if side == "decoder":
        modes["top_m"] = top_m
    sam = SamConfig.model_validate({"form": "legacy", side: modes})
    build = DecoderAlignment if side == "decoder" else EncoderAlignment
    module = build(32, 24, 4, sam)
    state = under(SAM, f"{side}.state.")
    names = {**_ALIGN, "gate": "alpha" if side == "decoder" else "gamma"}
    ours = {"attention.scale.log_scale": module.attention.scale.log_scale}
    for name in module.state_dict():
        stem, _, kind = name.rpartition(".")
        if name in names:
            ours[name] = state[names[name]]
        elif stem in names:
            ours[name] = state[f"{names[stem]}.{kind}"]
    module.load_state_dict(ours)
    return module


def run(module: SemanticAlignment, side: str, x: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    words = module.words(Text(text, legacy_text_mask(text)))
    if side == "decoder":
        return module(x, words, return_map=True)
    return module(x, words), module.attend(x, words, return_map=True)[1]


@pytest.mark.parametrize("case", CASES)
def test_alignment_matches_the_original(case: str):
    side, cosine, learnable, rest = case.split(".", 3)
    init, _, top = rest.rpartition(".")
    module = alignment(
        side,
        cosine=cosine == "cos1",
        learnable=learnable == "learn1",
        init=INITS[init],
        top_m=3 if top == "topk1" else None,
    )
    x = SAM["in.x"].clone().requires_grad_()
    y, attention = run(module, side, x, SAM["in.text"])
    close(y, SAM[f"{case}.y"])
    close(attention.flatten(2, 3).transpose(1, 2), SAM[f"{case}.attn"])
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    close(x.grad, SAM[f"{case}.grad_x"], 2e-5)
    log_scale, expected = module.attention.scale.log_scale, SAM[f"{case}.grad_logit"]
    meta = next(entry for entry in META if entry["tag"] == case)
    assert log_scale.item() == pytest.approx(meta["stored_log"], abs=1e-6)
    assert module.attention.scale.scale.item() == pytest.approx(
        meta["scale_times_sqrt_dk"], rel=1e-5
    )
    if learnable == "learn0":
        assert expected.isnan().all()
        assert not log_scale.requires_grad
        return
    close(log_scale.grad.view(1), expected, 2e-5)
    if init != "init1":  # clamped at 2: the temperature has no gradient
        assert log_scale.grad == 0
        assert torch.equal(SAM[f"{case}.y"], SAM[f"{case.replace(init, 'init100')}.y"])


def test_golden_files_have_36_alignment_cases():
    assert len(CASES) == len(META) == 36


@pytest.mark.parametrize("side", ["decoder", "encoder"])
@pytest.mark.parametrize("kind", ["shared_text", "empty_batch", "holes"])
def test_alignment_with_shared_empty_or_partial_text(side: str, kind: str):
    decoder = side == "decoder"
    module = alignment(side, cosine=decoder, learnable=False, init=1 / 0.07 if decoder else 1.0)
    x, text = SAM["in.x"], SAM["in.text"]
    if kind == "shared_text":
        text = text[:1].expand(3, -1, -1)
    elif kind == "empty_batch":
        text = torch.zeros_like(text)
    elif decoder:
        text = SAM["in.text_holes"]
    else:  # the original reads only as many slots as there are words
        x, text = x[:1], SAM["in.text_holes"][:1, :5]
    y, _ = run(module, side, x, text)
    close(y, SAM[f"{side}.{kind}.y"])
    if kind == "empty_batch" and not decoder:
        assert torch.equal(y, x)


def test_metrics_match_the_original():
    tensors = golden("metrics")
    expected = json.loads((GOLDEN / "metrics_lr.json").read_text())
    for suffix, classes in (("", 7), ("_absent6", 6)):
        predictions = tensors["logits"][:, :classes].argmax(1)
        counts = confusion_matrix(predictions, tensors[f"label{suffix}"], 7)
        assert counts.dtype == torch.int64
        assert torch.equal(counts, tensors[f"hist{suffix}"].long())
        found = segmentation_metrics(counts)
        if not suffix:
            normal = expected["normal"]
            for name in ("miou", "macc", "f1"):
                assert getattr(found, name) == pytest.approx(normal[name], abs=0.01)
            assert found.pixel_acc == pytest.approx(normal["overall_pixel_acc"], abs=0.01)
            assert found.iou_per_class == pytest.approx(normal["iou_per_class"], abs=0.01)
            assert found.acc_per_class == pytest.approx(normal["acc_per_class"], abs=0.01)
        else:
            absent = expected["class6_absent_from_gt_and_pred"]
            reference = absent["miou_reference_counts_absent_as_zero"]
            assert found.miou_reference == pytest.approx(reference, abs=0.01)
            assert found.miou == pytest.approx(absent["miou_nanmean"], abs=0.01)
            assert math.isnan(found.iou_per_class[6])
            assert found.iou_per_class[:6] == pytest.approx(absent["iou_per_class"][:6], abs=0.01)


def test_polynomial_schedule_matches_the_original():
    expected = json.loads((GOLDEN / "metrics_lr.json").read_text())["lr_schedule"]
    schedule = ScheduleConfig(kind="legacy_poly", warmup=500, power=0.9)
    for step, rate in expected["values"].items():
        found = expected["base"] * lr_factor(schedule, int(step), expected["total"])
        assert found == pytest.approx(rate, rel=1e-6)
