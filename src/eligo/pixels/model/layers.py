"""Small layers of the pixels model, and the choice between torch and Triton kernels."""

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

Tokens: TypeAlias = Float[Tensor, "batch height width dim"]
"""A grid of tokens, channels last."""
_KERNEL_TYPES = (torch.float32, torch.float16, torch.bfloat16)

_SWITCH = "ELIGO_PIXELS_KERNELS"
"""Environment variable: any value but `triton`, such as `torch`, turns the kernels off."""

_log = logging.getLogger(__name__)


def use_kernels(x: Tensor, *weights: Tensor) -> bool:
    """Whether to use Triton: on a GPU, without gradients, export or tracing."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights)):
        return False
    if torch.compiler.is_compiling():
        return _kernels_run(x.device, x.dtype)
    if torch._C._is_tracing() or _is_intercepted() or type(x) is not Tensor:
        return False
    if x.is_cuda and x.get_device() != torch.cuda.current_device():  # where Triton launches
        return False
    return _kernels_run(x.device, x.dtype)


def kernel(name: Literal["attend", "depthwise", "linear", "norm", "rotated"]) -> Callable[..., Any]:
    """Return a function of `kernels`, which is imported on a GPU only."""
    from eligo.pixels.model import kernels

    return getattr(kernels, name)


def is_traced() -> bool:
    """Whether tensors may not be real ones: in a compiler, tracer, transform or dispatch mode."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or _is_intercepted()


def _kernels_run(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels are turned on, and run for this device and type.

    A compiler calls this function instead of tracing it: traced, `is_exporting` is always true in
    torch 2.11.
    """
    if torch.compiler.is_exporting():
        return False
    if os.environ.get(_SWITCH, "triton") != "triton" or dtype not in _KERNEL_TYPES:
        return False
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return (device.type == "cuda" or interpreted) and _triton_works(device, dtype)


def products_in_tf32() -> bool:
    """Whether torch allows TF32 in products of float32 matrices."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def convolutions_in_tf32() -> bool:
    """Whether torch allows TF32 in convolutions of float32 numbers."""
    return torch.backends.cudnn.conv.fp32_precision == "tf32"  # pyright: ignore[reportAttributeAccessIssue]


# As `torch.compiler.assume_constant_result` does, which would import the compiler.
for _constant in (_kernels_run, products_in_tf32, convolutions_in_tf32):
    _constant.__dict__["_dynamo_marked_constant"] = True


def _is_intercepted() -> bool:
    """Whether torch.func, forward gradients or a dispatch mode (a counter, a tracer) is active."""
    return (
        torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


@cache
def _triton_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels run; a C compiler may be missing, or the GPU or type unsupported."""
    if find_spec("triton") is None:
        return False
    one = torch.ones(1, dtype=dtype, device=device)
    try:
        from eligo.pixels.model import kernels

        kernels.norm(one, one, one, 1.0, dtype)
        kernels.linear(one.view(1, 1), one.view(1, 1), one)
        kernels.depthwise(one.view(1, 1, 1, 1), one.expand(1, 1, 3, 3), one)
        kernels.rotated(one.expand(1, 1, 1, 6), one.float().expand(1, 1, 1, 1, 2).contiguous())
        token, rate = one.view(1, 1, 1, 1, 1), one.float()
        kernels.attend(token, token, token, "all", rate, rate.expand(2).contiguous())
    except Exception as error:
        _log.warning("Triton does not work here (%s); using torch, which is slower", error)
        return False
    return True


def product(
    x: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"]:
    """`x W' + b`; by a kernel in float32, as exact as torch's product."""
    exact = x.dtype == weight.dtype == torch.float32 and not products_in_tf32()
    weights = (weight,) if bias is None else (weight, bias)
    if exact and use_kernels(x, *weights) and not torch.is_autocast_enabled(x.device.type):
        return kernel("linear")(x, *weights)
    return F.linear(x, weight, bias)


class TokenLinear(nn.Linear):
    """A matrix product for every token."""

    def forward(self, input: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
        """Transform every token by itself."""
        return product(input, self.weight, self.bias)


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution, on (batch, channels, height, width)."""

    def __init__(self, in_dim: int, out_dim: int, bias: bool = True) -> None:
        super().__init__(in_dim, out_dim, 1, bias=bias)

    def forward(
        self, input: Float[Tensor, "batch in_dim height width"]
    ) -> Float[Tensor, "batch out_dim height width"]:
        """Transform every pixel by itself.

        On a GPU without TF32 as a matrix product: cuDNN may choose a Fourier transform, which takes
        gigabytes.
        """
        if not input.is_cuda or convolutions_in_tf32():
            return super().forward(input)
        tokens = product(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
        return tokens.permute(0, 3, 1, 2)


class ConvNorm(nn.Module):
    """A convolution and its BatchNorm, on (batch, channels, height, width)."""

    def __init__(
        self, in_dim: int, out_dim: int, kernel: int, *, stride: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        if kernel == stride == 1:
            self.conv = Pointwise(in_dim, out_dim, bias)
        else:
            self.conv = nn.Conv2d(in_dim, out_dim, kernel, stride, kernel // 2, bias=bias)
        self.norm: nn.Module = nn.BatchNorm2d(out_dim)

    def forward(
        self, x: Float[Tensor, "batch in_dim height width"]
    ) -> Float[Tensor, "batch out_dim out_height out_width"]:
        """Convolve and normalise."""
        return self.norm(self.conv(x))


class Depthwise(nn.Conv2d):
    """One k x k filter per channel, zero-padded, on (batch, height, width, channels)."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, input: Tokens, onto: Tokens | None = None) -> Tokens:
        """Filter every channel; the result is added to `onto`."""
        weights = [part for part in (self.weight, self.bias, onto) if part is not None]
        if self.bias is not None and use_kernels(input, *weights):
            return kernel("depthwise")(input, self.weight, self.bias, onto)
        # Both permutes are views (the memory is channels-last).
        filtered = super().forward(input.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return filtered if onto is None else onto + filtered


class TokenNorm(nn.LayerNorm):
    """LayerNorm before a matrix product; the kernel already returns the autocast type."""

    def forward(self, input: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Normalise every token; a compiler fuses torch's norm with what is around it."""
        if torch.compiler.is_compiling() or not use_kernels(input, self.weight, self.bias):
            return super().forward(input)
        device = input.device.type
        half = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if half else input.dtype
        return kernel("norm")(input, self.weight, self.bias, self.eps, dtype)


class DropPath(nn.Module):
    """Stochastic depth: in training, drop the branch of a sample with this probability."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Return the branch, scaled up, or zeros."""
        if not self.training or self.probability == 0:
            return x
        keep = 1 - self.probability
        shape = (x.shape[0], *(1 for _ in x.shape[1:]))
        return x * torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        """Show the probability in `print(module)`."""
        return f"{self.probability:.3g}"
