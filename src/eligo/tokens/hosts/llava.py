"""LLaVA: a CLIP or SigLIP tower, an MLP projector, a Llama."""

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.tokens.hosts.base import Host


class Llava(Host):
    """LLaVA 1.5 and its variants of fixed resolution."""

    family = "LLaVA"
    can_record = True
    image_inputs = ("pixel_values", "vision_feature_layer", "vision_feature_select_strategy")

    @property
    def feature_width(self) -> int:
        """Width of the tower's features; several layers may be concatenated."""
        layers = self.config.vision_feature_layer
        return self.tower.config.hidden_size * (1 if isinstance(layers, int) else len(layers))

    @property
    def supply(self) -> int | None:
        """Tokens of an image of fixed size."""
        return self.patches_per_side**2

    def features(
        self, pixels: Float[Tensor, "images 3 rows columns"]
    ) -> Float[Tensor, "images tokens width"]:
        """Return the input of the projector."""
        states = self.tower(pixels, output_hidden_states=True).hidden_states
        layers = self.config.vision_feature_layer
        chosen = [layers] if isinstance(layers, int) else layers
        first = int(self.has_cls)
        return torch.cat([states[layer][:, first:] for layer in chosen], -1)
