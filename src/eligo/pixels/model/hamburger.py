"""Hamburger (Geng et al. 2021): global context by non-negative matrix factorisation.

`e = ReLU(conv x)` as X (C x N) is factorised into bases B (C x R) and codes K (N x R):
`K = softmax_rank(X'B)`, then repeatedly `K *= X'B / (K (B'B) + eps)`, `B *= X K / (B (K'K) + eps)`,
and K once more; `x = ReLU(x + BN(conv(B K')))`. In float32, with the gradient through all steps.

Departure: the original draws new bases in every evaluation, so its results are not reproducible.
Here evaluation starts from bases seeded by the config and stored with the weights, the same for
every sample; training draws new ones; a caller may pass its own.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.pixels.config import HeadConfig
from eligo.pixels.model.layers import ConvNorm, Pointwise

_EPS = 1e-6


class Hamburger(nn.Module):
    """Global context for a feature map."""

    bases: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.train_steps, self.eval_steps = config.train_steps, config.eval_steps
        self.input = Pointwise(config.channels, config.ham_channels)
        self.output = ConvNorm(config.ham_channels, config.channels, 1, bias=False)
        generator = torch.Generator().manual_seed(config.bases_seed)
        shape = (config.ham_channels, config.rank)
        drawn = torch.rand(shape, generator=generator, device="cpu")  # even on the meta device
        self.register_buffer("bases", F.normalize(drawn, dim=0).to(self.input.weight.device))

    def forward(
        self,
        x: Float[Tensor, "batch channels height width"],
        bases: Float[Tensor, "#batch ham_channels rank"] | None = None,
    ) -> Float[Tensor, "batch channels height width"]:
        """Add the low-rank approximation of `x`; `bases` are the initial bases."""
        ham = F.relu(self.input(x))
        if bases is None:
            bases = self._random_bases(ham) if self.training else self.bases[None]
        with torch.autocast(x.device.type, enabled=False):
            steps = self.train_steps if self.training else self.eval_steps
            low_rank = factorise(ham.flatten(2).float(), bases.float(), steps)
        return F.relu(x + self.output(low_rank.view(ham.shape).to(ham.dtype)))

    def _random_bases(self, ham: Tensor) -> Tensor:
        drawn = torch.rand((ham.shape[0], *self.bases.shape), device=ham.device)
        return F.normalize(drawn, dim=1)


def factorise(
    x: Float[Tensor, "batch dim tokens"], bases: Float[Tensor, "#batch dim rank"], steps: int
) -> Float[Tensor, "batch dim tokens"]:
    """Return the non-negative approximation B K' of `x` after `steps` multiplicative updates."""
    bases = bases.expand(x.shape[0], -1, -1)  # not len(x): exports would fix the batch
    codes = (x.mT @ bases).softmax(-1)  # (batch, tokens, rank)
    for _ in range(steps):
        codes = _update_codes(x, bases, codes)
        bases = bases * (x @ codes) / (bases @ (codes.mT @ codes) + _EPS)
    return bases @ _update_codes(x, bases, codes).mT


def _update_codes(x: Tensor, bases: Tensor, codes: Tensor) -> Tensor:
    return codes * (x.mT @ bases) / (codes @ (bases.mT @ bases) + _EPS)
