"""The discriminator: does an answer come from the pruned model or from the full one?

Part of the two-stage pruning design (docs/sources.md); it reads the answer positions of a few
layers. It is used only if its loss has a weight: the states of the full model are known, so
distilling them gives a more direct signal than an adversarial loss.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from eligo import ops
from eligo.config import Config
from eligo.tokens.model.base import PretrainedModule, Shapes

States = Float[Tensor, "layers batch words width"]


class DiscriminatorShape(Config):
    """Sizes of a `Discriminator`."""

    width: int = Field(ge=1)
    """Width of the language model."""
    num_layers: int = Field(default=3, ge=1)
    """Number of layers that it reads."""
    dim: int = Field(default=512, ge=2)
    """Hidden width."""
    spectral_norm: bool = False
    """Keep the largest singular value of every layer at 1."""


class Discriminator(PretrainedModule):
    """Per layer norm, linear, GELU, mean over the answer; then a three-layer MLP to one logit."""

    file_name = "discriminator"
    shape_type = DiscriminatorShape

    def __init__(self, shape: DiscriminatorShape) -> None:
        super().__init__(shape)
        self.shape: DiscriminatorShape = shape

        def linear(inputs: int, outputs: int) -> nn.Module:
            layer = nn.Linear(inputs, outputs)
            return spectral_norm(layer) if shape.spectral_norm else layer

        dim = shape.dim
        self.readers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(shape.width), linear(shape.width, dim), nn.GELU())
            for _ in range(shape.num_layers)
        )
        self.judge = nn.Sequential(
            linear(shape.num_layers * dim, dim),
            nn.GELU(),
            linear(dim, dim // 2),
            nn.GELU(),
            linear(dim // 2, 1),
        )

    def forward(self, states: States, mask: Bool[Tensor, "batch words"]) -> Float[Tensor, " batch"]:
        """Return the float32 logit of "this is the full model"."""
        with torch.autocast(states.device.type, enabled=False):
            read = [
                ops.masked_mean(reader(layer.float()), mask)
                for reader, layer in zip(self.readers, states, strict=True)
            ]
            return self.judge(torch.cat(read, -1)).squeeze(-1)

    def frozen(self, states: States, mask: Bool[Tensor, "batch words"]) -> Float[Tensor, " batch"]:
        """`forward` with gradients for the states only: for the loss of the pruned model."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        return torch.func.functional_call(self, weights, (states, mask))

    @torch.no_grad()
    def reinitialise(self) -> None:
        """Restart from random weights; the caller resets the optimiser."""
        self.load_state_dict(Discriminator(self.shape).state_dict())

    @staticmethod
    def shape_from_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Return all sizes from the weights."""
        del run
        normed = any("parametrizations" in name for name in shapes)
        first = "parametrizations.weight.original" if normed else "weight"
        dim, width = shapes[f"readers.0.1.{first}"]
        layers = {name.split(".")[1] for name in shapes if name.startswith("readers.")}
        return {"width": width, "num_layers": len(layers), "dim": dim, "spectral_norm": normed}
