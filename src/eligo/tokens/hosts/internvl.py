"""InternVL: a tower, pixel shuffle, an MLP projector, a language model; images are tiled."""

from eligo.tokens.hosts.base import Host, Patches, TokenValues


class InternVL(Host):
    """2x2 patches become one token before the projector."""

    family = "InternVL"
    budget_unit = "tile"
    image_inputs = ("pixel_values", "vision_feature_layer", "vision_feature_select_strategy")

    @property
    def feature_width(self) -> int:
        """Width of the concatenated patches of a token."""
        return self.tower.config.hidden_size * int(1 / self.config.downsample_ratio) ** 2

    @property
    def supply(self) -> int | None:
        """Tokens of a tile."""
        return int(self.patches_per_side * self.config.downsample_ratio) ** 2

    def rows_to_tokens(self, rows: Patches) -> TokenValues:
        """Shuffle like the features, then average the patches of a token."""
        side = int(rows.shape[1] ** 0.5)
        squares = rows.reshape(len(rows), side, side, 1)
        shuffled = self.core.pixel_shuffle(squares, scale_factor=self.config.downsample_ratio)
        return shuffled.reshape(len(rows), -1, shuffled.shape[-1]).mean(-1)
