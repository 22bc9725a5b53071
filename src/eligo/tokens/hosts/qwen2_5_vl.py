"""Qwen2.5-VL: Qwen2-VL with windows in the tower."""

from jaxtyping import Float
from torch import Tensor

from eligo.tokens.hosts.qwen2_vl import Qwen2VL


class Qwen25VL(Qwen2VL):
    """Its tower attends within windows, and orders its tokens by them."""

    family = "Qwen2.5-VL"

    def in_raster_order(
        self, values: Float[Tensor, " tokens"], grid: Tensor
    ) -> Float[Tensor, " tokens"]:
        """Undo the window order of the tower."""
        from transformers.vision_utils import get_vision_window_index

        window_index, _ = get_vision_window_index(
            grid,
            spatial_merge_size=self.tower.spatial_merge_size,
            window_size=self.tower.window_size,
            patch_size=self.tower.patch_size,
        )
        return values[window_index.argsort().to(values.device)]
