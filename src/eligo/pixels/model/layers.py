"""Small layers that several parts of the pixels model are made of."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ConvNorm(nn.Module):
    """A convolution and its BatchNorm, on (batch, channels, height, width)."""

    def __init__(
        self, in_dim: int, out_dim: int, kernel: int, *, stride: int = 1, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_dim, out_dim, kernel, stride, kernel // 2, bias=bias)
        self.norm = nn.BatchNorm2d(out_dim)

    def forward(
        self, x: Float[Tensor, "batch in_dim height width"]
    ) -> Float[Tensor, "batch out_dim out_height out_width"]:
        """Convolve and normalise."""
        return self.norm(self.conv(x))


class Depthwise(nn.Conv2d):
    """One k x k filter per channel, zero-padded, on (batch, height, width, channels)."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(
        self, input: Float[Tensor, "batch height width dim"]
    ) -> Float[Tensor, "batch height width dim"]:
        """Filter every channel; both permutes are views (the memory is channels-last)."""
        return super().forward(input.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class DropPath(nn.Module):
    """In training, leave out a sample's branch with this probability, and scale up the others."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The branch, or zeros."""
        if not self.training or self.probability == 0:
            return x
        keep = 1 - self.probability
        shape = (x.shape[0], *(1 for _ in x.shape[1:]))
        return x * torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.probability:.3g}"
