"""The DFormerv2 encoder (CVPR 2025, as its released code): RGB, with attention shaped by depth.

Stem: four 3x3 convolutions to stride 4. Four stages of blocks, a strided convolution between them.
Tokens are (batch, height, width, channels) inside. The output of stage 0 is returned as it is, that
of the others after a LayerNorm that the next stage does not use.

Departure (off by default): `depth_stem`. In DFormerv2, depth only re-weights attention, so what RGB
does not show stays invisible; the stem adds a learned projection of (depth, validity) to the image.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.config import EncoderConfig, SamConfig
from eligo.pixels.model.alignment import EncoderAlignment
from eligo.pixels.model.block import Block
from eligo.pixels.model.geometry import (
    Depth,
    Tables,
    known_depth,
    stage_geometry,
    stage_tables,
)
from eligo.pixels.model.layers import ConvNorm, Tokens, is_traced
from eligo.pixels.text.batch import Text


class Stage(nn.Module):
    """The blocks of one resolution, the norm of their output, and the downsampling after them."""

    def __init__(self, config: EncoderConfig, index: int, drop_paths: list[float]) -> None:
        super().__init__()
        dim, self.num_heads = config.dims[index], config.heads[index]
        self.head_dim = dim // self.num_heads
        self.spread = config.ranges[index]
        self.full = index == 3
        self.last_tables: tuple[tuple[tuple[int, int], torch.device] | None, Tables | None]
        self.last_tables = (None, None)
        self.blocks = nn.ModuleList(
            Block(
                dim, self.num_heads, dim * config.ffn_ratios[index],
                config.layer_scale[index], drop_path,
            )
            for drop_path in drop_paths
        )  # fmt: skip
        self.norm_out = nn.LayerNorm(dim) if index > 0 else None
        self.downsample = ConvNorm(dim, config.dims[index + 1], 3, stride=2) if index < 3 else None

    def forward(
        self,
        x: Tokens,
        depth: Depth | None,
        align: Sequence[EncoderAlignment] = (),
        text: Text | None = None,
        group: int = 1,
    ) -> Tokens:
        """Run all blocks; `group` successive ones share a module of `align`."""
        size = (x.shape[1], x.shape[2])
        geometry = stage_geometry(size, depth, self._tables(size, x.device), full=self.full)
        words = [module.words(text) for module in align] if text is not None else []
        for number, block in enumerate(self.blocks):
            aligned = (align[number // group], words[number // group]) if words else ()
            x = block(x, geometry, *aligned)
        return x

    def _tables(self, size: tuple[int, int], device: torch.device) -> Tables:
        """The tables of this size; those of the last size are kept."""
        if is_traced():  # a tracer's tensors must not be kept, and kept ones would be constants
            return self._new_tables(size, device)
        key, (kept, tables) = (size, device), self.last_tables
        if kept != key or tables is None:
            with torch.inference_mode(False), torch.no_grad():  # to be used with gradients too
                tables = self._new_tables(*key)
            if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
                self.last_tables = (key, tables)
        return tables

    def _new_tables(self, size: tuple[int, int], device: torch.device) -> Tables:
        return stage_tables(
            size, num_heads=self.num_heads, head_dim=self.head_dim, spread=self.spread,
            device=device,
        )  # fmt: skip


class Encoder(nn.Module):
    """RGB, depth and words to four feature maps, at strides 4, 8, 16 and 32.

    >>> encoder = Encoder(EncoderConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), heads=(1,) * 4))
    >>> [tuple(map.shape) for map in encoder(torch.randn(1, 3, 32, 64))]
    [(1, 8, 8, 16), (1, 8, 4, 8), (1, 16, 2, 4), (1, 16, 1, 2)]
    """

    def __init__(
        self, config: EncoderConfig, sam: SamConfig | None = None, text_dim: int = 0
    ) -> None:
        super().__init__()
        self.config = config
        width = config.dims[0]
        self.depth_stem = None
        if config.depth_stem:
            self.depth_stem = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.stem = nn.ModuleList(
            (
                ConvNorm(3, width // 2, 3, stride=2),
                ConvNorm(width // 2, width // 2, 3),
                ConvNorm(width // 2, width, 3, stride=2),
                ConvNorm(width, width, 3),
            )
        )
        total = sum(config.depths)
        rates = [config.drop_path * number / max(1, total - 1) for number in range(total)]
        starts = [sum(config.depths[:index]) for index in range(4)]
        self.stages = nn.ModuleList(
            Stage(config, index, rates[start : start + config.depths[index]])
            for index, start in enumerate(starts)
        )
        self._initialise()
        self.align = nn.ModuleDict()
        self.groups = (1, 1, 1, 1)
        if sam is not None:
            self.groups = sam.encoder.groups
            for index in sam.encoder.stages:
                self.align[str(index)] = nn.ModuleList(
                    EncoderAlignment(config.dims[index], text_dim, config.heads[index], sam)
                    for _ in range(0, config.depths[index], self.groups[index])
                )

    def forward(
        self,
        rgb: Float[Tensor, "batch 3 height width"],
        depth: Float[Tensor, "batch depth_channels height width"] | None = None,
        depth_mask: Bool[Tensor, "batch 1 height width"] | None = None,
        text: Text | None = None,
    ) -> tuple[Float[Tensor, "batch _dim _height _width"], ...]:
        """Return the features of every stage, (batch, channels, height, width)."""
        known = None if depth is None else known_depth(depth, depth_mask)
        x = self._embed(rgb, known)
        features = []
        for index, stage in enumerate(cast("Iterable[Stage]", self.stages)):
            modules = self.align[str(index)] if str(index) in self.align else nn.ModuleList()
            align = list(cast("Iterable[EncoderAlignment]", modules))
            x = stage(x, known, align, text, self.groups[index])
            output = x if stage.norm_out is None else stage.norm_out(x)
            features.append(output.permute(0, 3, 1, 2))
            if stage.downsample is not None:
                x = stage.downsample(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return tuple(features)

    def _embed(self, rgb: Tensor, depth: Depth | None) -> Tensor:
        if self.depth_stem is not None and depth is not None:
            valid = torch.ones_like(depth.z) if depth.valid is None else depth.valid.to(depth.z)
            rgb = rgb + self.depth_stem(torch.cat((depth.z, valid), 1))
        x = rgb.contiguous(memory_format=torch.channels_last)
        for number, layer in enumerate(self.stem):
            x = layer(x) if number == 3 else F.gelu(layer(x))
        return x.permute(0, 2, 3, 1)

    @torch.no_grad()
    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if self.depth_stem is not None:
            nn.init.zeros_(self.depth_stem.weight)
