"""SmolVLM: a SigLIP tower, pixel shuffle and one linear layer, a Llama."""

from torch import nn

from eligo.tokens.hosts.base import Host, Patches, TokenValues


class SmolVLM(Host):
    """Images are split into sub-images, along an extra axis of the pixels."""

    family = "SmolVLM"
    budget_unit = "tile"
    text_name = "text_model"
    projector_name = "connector"
    tower_name = "vision_model"
    image_inputs = ("pixel_values", "pixel_attention_mask")

    def find_projector(self) -> nn.Module:
        """Return the layer after the pixel shuffle."""
        return self.core.connector.modality_projection

    @property
    def feature_width(self) -> int:
        """Width of the concatenated patches of a token."""
        return self.tower.config.hidden_size * self.config.scale_factor**2

    @property
    def supply(self) -> int | None:
        """Tokens of a sub-image."""
        return (self.patches_per_side // self.config.scale_factor) ** 2

    def rows_to_tokens(self, rows: Patches) -> TokenValues:
        """Shuffle like the features, then average the patches of a token."""
        connector = self.core.connector
        return connector.pixel_shuffle(rows.unsqueeze(-1), connector.scale_factor).mean(-1)
