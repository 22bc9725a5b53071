"""From stored numbers to what the network sees: colours, depth, labels. Section 6.

Depth: `png8` z = (v/255 - 0.48) / 0.28, where 0 is a value; `metric` m = v / depth_scale, 0 or NaN
unknown, z = (min(m, 10)/10 - 0.48) / 0.28; `sun16` (v >> 3) | (v << 13) millimetres, then the same.
"""

from functools import cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor

from eligo.pixels.config import ChannelOrder, InputsConfig

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, red first
_DEPTH_MEAN, _DEPTH_STD = 0.48, 0.28
_FARTHEST = 10.0  # metres


@cache
def _colours(device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(part, device=device).view(3, 1, 1) for part in (_MEAN, _STD))
    return mean, std


def normalise_rgb(
    rgb: UInt8[Tensor, "*batch 3 height width"], channel_order: ChannelOrder = "rgb"
) -> Float[Tensor, "*batch 3 height width"]:
    """ImageNet's mean and deviation, by place and not by colour: with blue first, red's are taken
    from blue, as in the training of the official weights that want bgr."""
    mean, std = _colours(rgb.device)
    ordered = rgb.flip(-3) if channel_order == "bgr" else rgb
    return (ordered.float() / 255 - mean) / std


def normalise_metres(
    metres: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """Metric depth as the network sees it; everything beyond ten metres is ten metres away."""
    return (metres.clamp(max=_FARTHEST) / _FARTHEST - _DEPTH_MEAN) / _DEPTH_STD


def decode_depth(
    values: Shaped[np.ndarray, "height width"], inputs: InputsConfig
) -> tuple[Float[Tensor, "1 height width"], Bool[Tensor, "1 height width"]]:
    """Stored depth as the network sees it (0 where unknown), and where it is known."""
    if inputs.depth == "png8":
        share = torch.from_numpy(values.astype(np.float32)) / 255
        z = ((share - _DEPTH_MEAN) / _DEPTH_STD)[None]
        return z, torch.ones_like(z, dtype=torch.bool)
    scale = inputs.depth_scale
    if inputs.depth == "sun16":
        stored = values.astype(np.uint16)
        values, scale = (stored >> np.uint16(3)) | (stored << np.uint16(13)), 1000.0
    metres = torch.from_numpy(values.astype(np.float32))[None] / scale
    known = metres.isfinite() & (metres > 0)
    return torch.where(known, normalise_metres(metres.nan_to_num()), 0.0), known
