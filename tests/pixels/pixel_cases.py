"""Inputs for the tests of `eligo.pixels`: golden files, tiny models, random official weights."""

import lzma
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from eligo.pixels import SIZES, EncoderConfig, PixelsConfig, PixelsModel, TextBatch

GOLDEN = Path(__file__).parents[1] / "golden" / "pixels"

TINY = {
    "num_classes": 5,
    "text_dim": 24,
    "encoder.dims": (16, 32, 48, 64),
    "encoder.depths": (1, 2, 3, 2),
    "encoder.heads": (2, 2, 3, 4),
    "head.channels": 32,
    "head.ham_channels": 24,
    "head.rank": 8,
}


def golden(name: str) -> dict[str, Tensor]:
    """The tensors of a golden file, which is stored compressed (lossless)."""
    return load(lzma.decompress((GOLDEN / f"{name}.safetensors.xz").read_bytes()))


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}


def tiny_config(**changes) -> PixelsConfig:
    return PixelsConfig().replace({**TINY, **changes})


def sized(size: str, **changes) -> PixelsConfig:
    return PixelsConfig().replace({**SIZES[size], **changes})


def tiny_model(**changes) -> PixelsModel:
    """With open gates and random norms, so that words and depth have an effect."""
    model = PixelsModel(tiny_config(**changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate", "gate_ffn")):
                parameter.fill_(0.7)
            elif name.endswith("prior_weights"):
                parameter.copy_(torch.tensor([0.7, 1.9]))
            elif parameter.ndim > 1:
                parameter.mul_(2.0)
    return model


def pictures(batch: int = 2, height: int = 64, width: int = 96) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, height, width), torch.randn(batch, 1, height, width)


def some_text(*counts: int, words: int = 5, dim: int = 24) -> TextBatch:
    """As many words for each sample as `counts` says, of `words` slots."""
    mask = torch.arange(words) < torch.tensor(counts)[:, None]
    return TextBatch(torch.randn(len(counts), words, dim), mask)


def official_encoder(config: EncoderConfig) -> dict[str, Tensor]:
    """Random weights under the names and shapes that the golden README lists."""
    dims, stem = config.dims, config.dims[0]
    state: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        state[name] = torch.randn(shape) * 0.1

    def both(name: str, out: int, *rest: int) -> None:
        add(f"{name}.weight", out, *rest)
        add(f"{name}.bias", out)

    def norm(name: str, dim: int, batch: bool = True) -> None:
        both(name, dim)
        if batch:
            add(f"{name}.running_mean", dim)
            state[f"{name}.running_var"] = torch.rand(dim) + 0.5
            state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    widths = ((3, stem // 2), (stem // 2, stem // 2), (stem // 2, stem), (stem, stem))
    for layer, (before, after) in enumerate(widths):
        both(f"patch_embed.proj.{3 * layer}", after, before, 3, 3)
        norm(f"patch_embed.proj.{3 * layer + 1}", after)
    for stage, dim in enumerate(dims):
        hidden, heads = dim * config.ffn_ratios[stage], config.heads[stage]
        for number in range(config.depths[stage]):
            block = f"layers.{stage}.blocks.{number}"
            both(f"{block}.cnn_pos_encode.dwconv", dim, 1, 3, 3)
            for part in ("layer_norm1", "layer_norm2"):
                norm(f"{block}.{part}", dim, batch=False)
            for part in "q", "k", "v", "out":
                both(f"{block}.Attention.{part}_proj", dim, dim)
            both(f"{block}.Attention.lepe.dwconv", dim, 1, 5, 5)
            add(f"{block}.Geo.weight", 2, 1, 1, 1)
            half = dim // heads // 2
            angle = 1.0 / (10000 ** torch.linspace(0, 1, half))
            state[f"{block}.Geo.angle"] = angle.unsqueeze(-1).repeat(1, 2).flatten()
            rate = config.ranges[stage] * torch.arange(heads, dtype=torch.float) / heads
            state[f"{block}.Geo.decay"] = torch.log(1 - 2 ** (-2 - rate))
            both(f"{block}.ffn.fc1", hidden, dim)
            both(f"{block}.ffn.dwconv.dwconv", hidden, 1, 3, 3)
            both(f"{block}.ffn.fc2", dim, hidden)
            if config.layer_scale[stage] is not None:
                add(f"{block}.gamma_1", 1, 1, 1, dim)
                add(f"{block}.gamma_2", 1, 1, 1, dim)
        if stage < 3:
            both(f"layers.{stage}.downsample.reduction", dims[stage + 1], dim, 3, 3)
            norm(f"layers.{stage}.downsample.norm", dims[stage + 1])
        if stage > 0:
            norm(f"extra_norms.{stage - 1}", dim, batch=False)
    return state


def official_model(config: PixelsConfig) -> dict[str, Tensor]:
    """A whole text-guided model, as the golden README names it."""
    encoder, head, text = config.encoder, config.head, config.text_dim
    state = {f"backbone.{key}": value for key, value in official_encoder(encoder).items()}

    def linear(name: str, out: int, *rest: int) -> None:
        state[f"{name}.weight"] = torch.randn(out, *rest) * 0.1
        state[f"{name}.bias"] = torch.randn(out) * 0.1

    def align(name: str, stage: int, side: str) -> None:
        dim = encoder.dims[stage]
        for part, width in ("q", dim), ("k", text), ("v", text), ("out", dim):
            linear(f"{name}.{part}_proj", dim, width)
        if side == "decoder":
            linear(f"{name}.norm1", dim)
            linear(f"{name}.norm2", dim)
            linear(f"{name}.ffn.0", 4 * dim, dim)
            linear(f"{name}.ffn.3", dim, 4 * dim)
        state[f"{name}.{'alpha' if side == 'decoder' else 'gamma'}"] = torch.randn(())
        state[f"{name}.gamma_scale"] = torch.randn(())
        state[f"{name}.{side}_logit_scale"] = torch.randn(())
        state[f"{name}._inv_sqrt_dk"] = torch.tensor((dim // encoder.heads[stage]) ** -0.5)

    def conv_norm(name: str, out: int, width: int) -> None:
        state[f"{name}.conv.weight"] = torch.randn(out, width, 1, 1) * 0.1
        linear(f"{name}.bn", out)
        state[f"{name}.bn.running_mean"] = torch.randn(out)
        state[f"{name}.bn.running_var"] = torch.rand(out) + 0.5
        state[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)

    for stage in config.sam.encoder.stages:
        count = -(-encoder.depths[stage] // config.sam.encoder.groups[stage])
        for group in range(count):
            align(f"backbone.encoder_sam_blocks.{stage}.{group}", stage, "encoder")
    for level in config.sam.decoder.stages:
        align(f"decode_head.dec_sam_layers.{level - 1}", level, "decoder")
    conv_norm("decode_head.squeeze", head.channels, sum(encoder.dims[1:]))
    linear("decode_head.hamburger.ham_in.conv", head.ham_channels, head.channels, 1, 1)
    conv_norm("decode_head.hamburger.ham_out", head.channels, head.ham_channels)
    conv_norm("decode_head.align", head.channels, head.channels)
    linear("decode_head.conv_seg", config.num_classes, head.channels, 1, 1)
    return state
