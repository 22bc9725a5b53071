"""When to check the values of a tensor.

Shapes and dtypes are always checked. Values are checked only for eager tensors on the CPU: on CUDA
it would wait for the device, and under `torch.compile` it would break the graph.
"""

import torch
from torch import Tensor


def values_are_free(*tensors: Tensor) -> bool:
    """Whether a value check costs neither a device sync nor a graph break."""
    if torch.compiler.is_compiling():
        return False
    return all(tensor.device.type == "cpu" for tensor in tensors)
