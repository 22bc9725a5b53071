"""LLaVA-OneVision: LLaVA-NeXT, but large images are shrunk, and several images have no tiles."""

from collections.abc import Mapping
from typing import Any

from eligo.tokens.hosts.llava_next import LlavaNext


class LlavaOneVision(LlavaNext):
    """An image without tiles has a second grid of one token, its newline."""

    family = "LLaVA-OneVision"
    image_inputs = (*LlavaNext.image_inputs, "batch_num_images")

    def num_tiles(self, given: Mapping[str, Any]) -> list[int]:
        """Return 1 for images of rows with several."""
        tiles, images = super().num_tiles(given), given.get("batch_num_images")
        if images is None:
            return tiles
        alone = [count == 1 for count in images.tolist() for _ in range(count)]
        return [count if single else 1 for count, single in zip(tiles, alone, strict=True)]

    def pack_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Shrink as the host does."""
        ratio = given.get("vision_aspect_ratio") or self.config.vision_aspect_ratio
        return {"vision_aspect_ratio": ratio}
