"""The discriminator: was this answer given by the pruned model or by the whole one?

Two-stage pruning guide, "Discriminator". It reads the answer positions of a few layers. It is used
only where its loss has a weight: the state that the whole model has is known, so being told it
directly (objective: distill) teaches more than having to guess what a critic dislikes.
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
from eligo.tokens.model.part import Part, Shapes


class DiscriminatorShape(Config):
    """What builds a `Discriminator`."""

    width: int = Field(ge=1)
    """Width of the language model."""
    num_layers: int = Field(default=3, ge=1)
    """How many of its layers are read."""
    dim: int = Field(default=512, ge=2)
    """Width inside."""
    spectral_norm: bool = False
    """Keep every layer's largest singular value at 1."""


class Discriminator(Part):
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

    def forward(
        self,
        states: Float[Tensor, "layers batch words width"],
        mask: Bool[Tensor, "batch words"],
    ) -> Float[Tensor, " batch"]:
        """Logit of "this is the whole model", float32."""
        with torch.autocast(states.device.type, enabled=False):
            read = [
                ops.masked_mean(reader(layer.float()), mask)
                for reader, layer in zip(self.readers, states, strict=True)
            ]
            return self.judge(torch.cat(read, -1)).squeeze(-1)

    def frozen(
        self,
        states: Float[Tensor, "layers batch words width"],
        mask: Bool[Tensor, "batch words"],
    ) -> Float[Tensor, " batch"]:
        """`forward` that teaches the states, not the discriminator: for the pruned side's loss."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        return torch.func.functional_call(self, weights, (states, mask))

    @torch.no_grad()
    def reinitialise(self) -> None:
        """Start anew from random weights; the caller forgets the optimiser's moments."""
        self.load_state_dict(Discriminator(self.shape).state_dict())

    @staticmethod
    def shape_of_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """All from the weights."""
        del run
        normed = any("parametrizations" in name for name in shapes)
        first = "parametrizations.weight.original" if normed else "weight"
        dim, width = shapes[f"readers.0.1.{first}"]
        layers = {name.split(".")[1] for name in shapes if name.startswith("readers.")}
        return {
            "width": width,
            "num_layers": len(layers),
            "dim": dim,
            "spectral_norm": normed,
        }
