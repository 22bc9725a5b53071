"""When the values of a tensor may be looked at.

Shapes and dtypes cost nothing to check and are checked always. Looking at *values* waits for the
device on CUDA and breaks the graph under `torch.compile`, so it is done only where it is free:
eager tensors on the CPU. The functions stay well defined without it.
"""

import torch
from torch import Tensor


def values_are_free(*tensors: Tensor) -> bool:
    """True where a value check costs neither a device sync nor a graph break."""
    if torch.compiler.is_compiling():
        return False
    return all(tensor.device.type == "cpu" for tensor in tensors)
