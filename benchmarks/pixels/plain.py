"""A plain implementation of the DFormerv2 encoder, to compare eligo's with.

It works as the released code: every block resizes the depth and builds its own prior, for all
heads; q, k and v are separate, attention is an explicit softmax. It shares nothing with eligo but
the weights.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from eligo.pixels import PixelsModel, to_official


class Plain:
    """The DFormerv2 encoder by its equations, from official weights."""

    def __init__(self, model: PixelsModel) -> None:
        state = to_official(model.encoder)
        device = next(model.parameters()).device
        self.weights = {key: value.to(device) for key, value in state.items()}
        self.config = model.config.encoder

    def require_grad(self) -> None:
        """Let the weights receive gradients."""
        fixed = ("running_mean", "running_var", "angle", "decay", "num_batches_tracked")
        for key, value in self.weights.items():
            if not key.endswith(fixed):
                value.requires_grad_()

    def __call__(self, rgb: Tensor, depth: Tensor) -> tuple[Tensor, ...]:
        x = rgb
        for layer, stride in enumerate((2, 1, 2, 1)):
            x = self.conv(x, f"patch_embed.proj.{3 * layer}", stride=stride, padding=1)
            x = self.batch_norm(x, f"patch_embed.proj.{3 * layer + 1}")
            x = F.gelu(x) if layer < 3 else x
        x = x.permute(0, 2, 3, 1)
        features = []
        for stage in range(4):
            for number in range(self.config.depths[stage]):
                x = self.block(x, depth, f"layers.{stage}.blocks.{number}", stage)
            exported = self.layer_norm(x, f"extra_norms.{stage - 1}", 1e-5) if stage else x
            features.append(exported.permute(0, 3, 1, 2).contiguous())
            if stage < 3:
                x = x.permute(0, 3, 1, 2)
                x = self.conv(x, f"layers.{stage}.downsample.reduction", stride=2, padding=1)
                x = self.batch_norm(x, f"layers.{stage}.downsample.norm").permute(0, 2, 3, 1)
        return tuple(features)

    def block(self, x: Tensor, depth: Tensor, name: str, stage: int) -> Tensor:
        x = x + self.depthwise(x, f"{name}.cnn_pos_encode.dwconv")
        branch = self.attention(self.layer_norm(x, f"{name}.layer_norm1", 1e-6), depth, name, stage)
        x = x + branch * self.weights.get(f"{name}.gamma_1", 1.0)
        normed = self.layer_norm(x, f"{name}.layer_norm2", 1e-6)
        hidden = F.gelu(self.linear(normed, f"{name}.ffn.fc1"))
        hidden = hidden + self.depthwise(hidden, f"{name}.ffn.dwconv.dwconv")
        return x + self.linear(hidden, f"{name}.ffn.fc2") * self.weights.get(f"{name}.gamma_2", 1.0)

    def attention(self, x: Tensor, depth: Tensor, name: str, stage: int) -> Tensor:
        batch, height, width, dim = x.shape
        heads = self.config.heads[stage]
        q, k, v = (self.linear(x, f"{name}.Attention.{part}_proj") for part in "qkv")
        local = self.depthwise(v, f"{name}.Attention.lepe.dwconv")
        k = k * (dim // heads) ** -0.5
        q, k, v = (part.view(batch, height, width, heads, -1) for part in (q, k, v))
        sin, cos = self.rotary(height, width, name)
        q, k = (self.rotate(part, sin, cos) for part in (q, k))
        if stage == 3:
            bias = self.full_prior(depth, height, width, name)
            q, k, v = (part.flatten(1, 2).transpose(1, 2) for part in (q, k, v))
            mixed = torch.softmax(q @ k.transpose(-1, -2) + bias, -1).to(v.dtype) @ v
            mixed = mixed.transpose(1, 2).reshape(batch, height, width, dim)
        else:
            rows, columns = self.split_prior(depth, height, width, name)
            q_row, k_row, v_row = (part.permute(0, 3, 1, 2, 4) for part in (q, k, v))
            weights = torch.softmax(q_row @ k_row.transpose(-1, -2) + rows, -1)
            v = (weights.to(v.dtype) @ v_row).permute(0, 2, 3, 1, 4)
            q_col, k_col, v_col = (part.permute(0, 3, 2, 1, 4) for part in (q, k, v))
            weights = torch.softmax(q_col @ k_col.transpose(-1, -2) + columns, -1)
            mixed = (weights.to(v.dtype) @ v_col).permute(0, 3, 2, 1, 4).flatten(-2)
        return self.linear(mixed + local, f"{name}.Attention.out_proj")

    def split_prior(
        self, depth: Tensor, height: int, width: int, name: str
    ) -> tuple[Tensor, Tensor]:
        """(batch, heads, height, width, width) and (batch, heads, width, height, height)."""
        z = F.interpolate(depth, (height, width), mode="bilinear", align_corners=False)[:, 0]
        w0, w1 = self.weights[f"{name}.Geo.weight"].flatten()
        decay = self.weights[f"{name}.Geo.decay"][None, :, None, None, None]
        biases = []
        for lines in (z, z.transpose(1, 2)):
            index = torch.arange(lines.shape[2], device=z.device, dtype=torch.float32)
            grid = (index[:, None] - index[None]).abs()[None, None, None] * decay
            gaps = (lines[..., :, None] - lines[..., None, :]).abs()[:, None] * decay
            biases.append(w0 * grid + w1 * gaps)
        return biases[0], biases[1]

    def full_prior(self, depth: Tensor, height: int, width: int, name: str) -> Tensor:
        """(batch, heads, tokens, tokens)."""
        z = F.interpolate(depth, (height, width), mode="bilinear", align_corners=False).flatten(2)
        w0, w1 = self.weights[f"{name}.Geo.weight"].flatten()
        decay = self.weights[f"{name}.Geo.decay"][None, :, None, None]
        rows = torch.arange(height, device=z.device).repeat_interleave(width).float()
        columns = torch.arange(width, device=z.device).repeat(height).float()
        grid = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
        gaps = (z[..., :, None] - z[..., None, :]).abs()
        return w0 * (grid[None, None] * decay) + w1 * (gaps * decay)

    def rotary(self, height: int, width: int, name: str) -> tuple[Tensor, Tensor]:
        angle = self.weights[f"{name}.Geo.angle"]
        index = torch.arange(height * width, device=angle.device)
        angles = (index[:, None] * angle).view(height, width, 1, -1)
        return torch.sin(angles), torch.cos(angles)

    @staticmethod
    def rotate(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        rotated = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return (x * cos + rotated * sin).to(x.dtype)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def conv(self, x: Tensor, name: str, **options) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], **options)

    def depthwise(self, x: Tensor, name: str) -> Tensor:
        groups, _, kernel, _ = self.weights[f"{name}.weight"].shape
        x = self.conv(x.permute(0, 3, 1, 2), name, padding=kernel // 2, groups=groups)
        return x.permute(0, 2, 3, 1)

    def layer_norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def batch_norm(self, x: Tensor, name: str) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        mean, var, weight, bias = (self.weights[f"{name}.{part}"] for part in parts)
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-5)
