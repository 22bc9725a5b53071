"""LLaVA-NeXT: an overview of the image, then its tiles, stitched, with a newline after each row."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.tokens.hosts.base import Capture, Host


class LlavaNext(Host):
    """Two grids per image, overview and tiles; newlines are the last column of the second.

    Image sizes reach only `get_image_features`, which is not a module: the method of this instance
    is wrapped while a context is open.
    """

    family = "LLaVA-NeXT"
    budget_unit = "grid (the overview, and all tiles together)"
    reduces_projected = True
    image_inputs = (
        "pixel_values", "image_sizes", "vision_feature_layer", "vision_feature_select_strategy",
    )  # fmt: skip

    def hooks(self) -> list[Any]:
        """Wrap the method that encodes images."""
        return [_Wrapped(self)]

    def capture_images(self, outputs: Any, given: Mapping[str, Any]) -> None:
        """Capture what `get_image_features` returned for its arguments `given`."""
        side = self.patches_per_side
        counts = self.num_tiles(given)
        blank = [torch.zeros(count, side**2) for count in counts]
        grids, lengths = [], []
        for marks in self.pack(blank, 1.0, given):
            rows, rest = int(marks.sum()), len(marks) - side**2
            grids += [(side, side), (rows, rest // rows)]
            lengths += [side**2, rest]
        features = torch.cat(list(outputs.pooler_output)).split(lengths)
        attention: dict[str, Any] = {
            need: torch.cat(self.pack(values.split(counts), 0.0, given)).split(lengths)
            for need, values in self._take_rows().items()
        }
        self.capture = Capture(features, features, grids, **attention)

    def num_tiles(self, given: Mapping[str, Any]) -> list[int]:
        """Return the tiles of each image, with its overview."""
        from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

        points, size = self.config.image_grid_pinpoints, self.tower.config.image_size
        return [image_size_to_num_patches(image, points, size) for image in given["image_sizes"]]

    def pack(
        self,
        values: Sequence[Float[Tensor, "_ tokens"]],
        newline: float,
        given: Mapping[str, Any],
    ) -> list[Float[Tensor, " _"]]:
        """Return values of the tokens of each tile in the order of the host's own tokens."""
        packed, _ = self.core.pack_image_features(
            [tiles[..., None] for tiles in values],
            given["image_sizes"],
            image_newline=torch.full((1,), newline),
            **self.pack_options(given),
        )
        return [image[:, 0] for image in packed]

    def pack_options(self, _given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the other arguments of the host's function."""
        return {"vision_feature_select_strategy": "full"}


class _Wrapped:
    """The wrapper of a host's `get_image_features`, removed like a hook."""

    def __init__(self, host: LlavaNext) -> None:
        self.core = host.core
        self.before = inner = host.core.get_image_features

        @functools.wraps(inner)
        def get_image_features(*args: Any, **kwargs: Any) -> Any:
            outputs = inner(*args, **kwargs)
            if hasattr(outputs, "pooler_output"):
                given = inspect.signature(inner).bind(*args, **kwargs).arguments
                host.capture_images(outputs, {**given, **given.get("kwargs", {})})
            return outputs

        host.core.get_image_features = get_image_features

    def remove(self) -> None:
        """Restore the method."""
        del self.core.get_image_features
        if self.core.get_image_features != self.before:  # it was wrapped before
            self.core.get_image_features = self.before
