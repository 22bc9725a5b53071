"""The head: three levels of features (guided by words) to one score per class and pixel.

Levels 1-3, words first; resized to level 1 (stride 8) and concatenated; squeeze, Hamburger, refine,
dropout, classifier; resized to the image. `refine` is the original's `align` convolution: here
`align` is the alignment with words.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.config import PixelsConfig
from eligo.pixels.model.alignment import AnyDecoderAlignment, decoder_alignment
from eligo.pixels.model.hamburger import Hamburger
from eligo.pixels.model.layers import ConvNorm
from eligo.pixels.text.batch import Text

_LEVELS = (1, 2, 3)


class Head(nn.Module):
    """Features of the encoder to logits at stride 8."""

    def __init__(self, config: PixelsConfig) -> None:
        super().__init__()
        dims, heads, head = config.encoder.dims, config.encoder.heads, config.head
        self.align = nn.ModuleDict(
            {
                str(level): decoder_alignment(
                    dims[level], config.text_dim, heads[level], config.sam
                )
                for level in config.sam.decoder.stages
            }
        )
        width = sum(dims[level] for level in _LEVELS)
        self.squeeze = ConvNorm(width, head.channels, 1, bias=False)
        self.hamburger = Hamburger(head)
        self.refine = ConvNorm(head.channels, head.channels, 1, bias=False)
        self.dropout = nn.Dropout2d(head.dropout)
        self.classifier = nn.Conv2d(head.channels, config.num_classes, 1)

    def forward(
        self,
        features: tuple[Float[Tensor, "batch _dim _height _width"], ...],
        text: Text | None = None,
        *,
        bases: Float[Tensor, "#batch ham_channels rank"] | None = None,
        return_map: bool = False,
    ) -> tuple[
        Float[Tensor, "batch classes height width"],
        Float[Tensor, "batch heads map_height map_width words"] | None,
    ]:
        """Logits, and the finest level's attention to the words if asked (and if there is any)."""
        levels, finest = [], None
        for level in _LEVELS:
            x = features[level]
            if text is not None and str(level) in self.align:
                module = cast("AnyDecoderAlignment", self.align[str(level)])
                want_map = return_map and finest is None
                guided, maps = module(
                    x.permute(0, 2, 3, 1), module.words(text), return_map=want_map
                )
                x, finest = guided.permute(0, 3, 1, 2), maps if want_map else finest
            levels.append(x)
        size = levels[0].shape[-2:]
        x = torch.cat(
            [level if level.shape[-2:] == size else _resize(level, size) for level in levels], 1
        )
        x = F.relu(self.squeeze(x))
        x = F.relu(self.refine(self.hamburger(x, bases)))
        return self.classifier(self.dropout(x)), finest


def _resize(x: Tensor, size: torch.Size) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)
