"""A copy of a model for inference: BatchNorms folded into convolutions, weights in half precision.

Folding changes results by rounding only. Autocast casts weights to half precision in every pass;
here it is done once, with the same result. All other weights are shared with the model.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from eligo.pixels.model.encoder import Stage
from eligo.pixels.model.layers import ConvNorm, Depthwise
from eligo.pixels.model.model import PixelsModel


@torch.no_grad()
def frozen(model: PixelsModel, dtype: torch.dtype = torch.float32) -> PixelsModel:
    """Return a copy in evaluation mode, to run in float32 or under autocast to `dtype`."""
    shared: dict[int, Tensor] = {
        id(parameter): nn.Parameter(parameter.detach(), requires_grad=False)
        for parameter in model.parameters()
    }
    shared |= {id(buffer): buffer.detach() for buffer in model.buffers()}
    copy = deepcopy(model, dict(shared)).eval()
    for module in list(copy.modules()):
        if isinstance(module, Stage):
            module.last_tables = (None, None)
        if isinstance(module, ConvNorm):
            assert isinstance(module.norm, nn.BatchNorm2d)
            module.conv, module.norm = fuse_conv_bn_eval(module.conv, module.norm), nn.Identity()
    for module in copy.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _cast(module, dtype)
    return copy


def _cast(module: nn.Conv2d | nn.Linear, dtype: torch.dtype) -> None:
    """Store weights as the product reads them: in `dtype`, filters with the channels last."""
    if isinstance(module, Depthwise):
        return  # its kernel reads float32
    for name, parameter in list(module.named_parameters(recurse=False)):
        value = parameter.detach().to(dtype)
        if value.ndim == 4:
            value = value.contiguous(memory_format=torch.channels_last)
        setattr(module, name, nn.Parameter(value, requires_grad=False))
