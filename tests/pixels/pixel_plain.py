"""A whole text-guided model of the legacy form, by its equations: the benchmark's plain encoder,
the alignment sample by sample and word by word, the head. From official weights alone."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.pixels.plain import Plain
from eligo.pixels import PixelsConfig


class PlainModel(Plain):
    def __init__(self, state: dict[str, Tensor], config: PixelsConfig) -> None:
        self.weights = {key.removeprefix("backbone."): value for key, value in state.items()}
        self.config, self.whole = config.encoder, config
        self.words: list[Tensor] | None = None

    def model(self, rgb: Tensor, depth: Tensor, words: list[Tensor], bases: Tensor) -> Tensor:
        """`words` are those of each sample, (number, text_dim)."""
        self.words = words
        levels = []
        features = self(rgb, depth)
        size = features[1].shape[2:]
        for level, x in list(enumerate(features))[1:]:
            if level in self.whole.sam.decoder.stages:
                x = self.decode(x.permute(0, 2, 3, 1), level).permute(0, 3, 1, 2)
            levels.append(F.interpolate(x, size, mode="bilinear", align_corners=False))
        x = F.relu(self.conv_bn(torch.cat(levels, 1), "decode_head.squeeze"))
        x = self.hamburger(x, bases)
        x = F.relu(self.conv_bn(x, "decode_head.align"))
        x = self.conv(x, "decode_head.conv_seg")
        return F.interpolate(x, rgb.shape[2:], mode="bilinear", align_corners=False)

    def attention(self, x: Tensor, depth: Tensor, name: str, stage: int) -> Tensor:
        branch = super().attention(x, depth, name, stage)
        sam = self.whole.sam.encoder
        if stage not in sam.stages:
            return branch
        group = int(name.rpartition(".")[2]) // sam.groups[stage]
        align = f"encoder_sam_blocks.{stage}.{group}"
        gate = self.weights[f"{align}.gamma"] * self.weights[f"{align}.gamma_scale"]
        update = self.text_attention(branch, align, "encoder", stage)
        has_words = torch.tensor([len(words) > 0 for words in self.words])[:, None, None, None]
        return torch.where(has_words, branch + gate * update, branch)

    def decode(self, x: Tensor, level: int) -> Tensor:
        name = f"decode_head.dec_sam_layers.{level - 1}"
        z = self.layer_norm(x, f"{name}.norm1", 1e-5)
        y = z
        if any(len(words) for words in self.words):
            y = z + self.weights[f"{name}.alpha"] * self.text_attention(z, name, "decoder", level)
        y = self.layer_norm(y, f"{name}.norm2", 1e-5)
        return y + self.linear(F.gelu(self.linear(y, f"{name}.ffn.0")), f"{name}.ffn.3")

    def text_attention(self, x: Tensor, name: str, side: str, stage: int) -> Tensor:
        """Wo Attn(x, t); Attn is 0 without words."""
        config = getattr(self.whole.sam, side)
        heads = self.config.heads[stage]
        log_scale = self.weights[f"{name}.{side}_logit_scale"]
        scale = log_scale.clamp(-2, 2).exp() if config.learnable_temp else log_scale.exp()
        update = torch.zeros_like(x)
        for sample, words in enumerate(self.words):
            if not len(words):
                continue
            q = self.linear(x[sample], f"{name}.q_proj").unflatten(-1, (heads, -1))
            k = self.linear(words, f"{name}.k_proj").unflatten(-1, (heads, -1))
            v = self.linear(words, f"{name}.v_proj").unflatten(-1, (heads, -1))
            if config.use_cosine:
                q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
            logits = scale * torch.einsum("ijhd,thd->ijht", q, k) / math.sqrt(q.shape[-1])
            update[sample] = torch.einsum("ijht,thd->ijhd", logits.softmax(-1), v).flatten(-2)
        return self.linear(update, f"{name}.out_proj")

    def hamburger(self, x: Tensor, B: Tensor) -> Tensor:
        name = "decode_head.hamburger"
        e = F.relu(self.conv(x, f"{name}.ham_in.conv"))
        X, B = e.flatten(2), B.expand(len(x), -1, -1)
        K = torch.softmax(X.transpose(1, 2) @ B, -1)
        for _ in range(7):
            K = K * (X.transpose(1, 2) @ B) / (K @ (B.transpose(1, 2) @ B) + 1e-6)
            B = B * (X @ K) / (B @ (K.transpose(1, 2) @ K) + 1e-6)
        K = K * (X.transpose(1, 2) @ B) / (K @ (B.transpose(1, 2) @ B) + 1e-6)
        low_rank = (B @ K.transpose(1, 2)).view(e.shape)
        return F.relu(x + self.conv_bn(low_rank, f"{name}.ham_out"))

    def conv_bn(self, x: Tensor, name: str) -> Tensor:
        return self.batch_norm(F.conv2d(x, self.weights[f"{name}.conv.weight"]), f"{name}.bn")
