"""The decoder head: three levels of features, guided by words, to one score per class and pixel.

Levels 1-3 are aligned with the words, resized to level 1 (stride 8) and concatenated; then squeeze,
Hamburger, refine, dropout, classifier. `refine` is the `align` convolution of the original: here
`align` is the alignment with words.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.config import PixelsConfig
from eligo.pixels.model.alignment import DecoderAlignment
from eligo.pixels.model.hamburger import Hamburger
from eligo.pixels.model.layers import ConvNorm, Pointwise
from eligo.pixels.text.batch import Text

_LEVELS = (1, 2, 3)


class Head(nn.Module):
    """Features of the encoder to logits at stride 8."""

    def __init__(self, config: PixelsConfig) -> None:
        super().__init__()
        dims, heads, head = config.encoder.dims, config.encoder.heads, config.head
        self.align = nn.ModuleDict(
            {
                str(level): DecoderAlignment(dims[level], config.text_dim, heads[level], config.sam)
                for level in config.sam.decoder.stages
            }
        )
        width = sum(dims[level] for level in _LEVELS)
        self.squeeze = ConvNorm(width, head.channels, 1, bias=False)
        self.hamburger = Hamburger(head)
        self.refine = ConvNorm(head.channels, head.channels, 1, bias=False)
        self.dropout = nn.Dropout2d(head.dropout)
        self.classifier = Pointwise(head.channels, config.num_classes)

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
        """Return logits, and with `return_map` the attention of the finest level to the words."""
        levels, finest = [], None
        for level in _LEVELS:
            x = features[level]
            if text is not None and str(level) in self.align:
                module = cast("DecoderAlignment", self.align[str(level)])
                want_map = return_map and finest is None
                tokens = x.permute(0, 2, 3, 1)
                guided, maps = module(tokens, module.words(text), return_map=want_map)
                x, finest = guided.permute(0, 3, 1, 2), maps if want_map else finest
            levels.append(x)
        size = levels[0].shape[-2:]
        x = F.relu(self.squeeze(torch.cat([_resize(level, size) for level in levels], 1)))
        x = F.relu(self.refine(self.hamburger(x, bases)))
        return self.classifier(self.dropout(x)), finest


def _resize(x: Tensor, size: torch.Size) -> Tensor:
    if x.shape[-2:] == size:
        return x
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)
