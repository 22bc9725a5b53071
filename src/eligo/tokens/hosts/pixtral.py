"""Pixtral (a LLaVA with a Pixtral tower): images of any shape, all patches in one row."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from eligo.tokens.hosts.base import Capture, Host


class Pixtral(Host):
    """One grid per image; line breaks are text."""

    family = "Pixtral"
    reduces_projected = True
    image_inputs = ("pixel_values", "image_sizes", "vision_feature_layer")

    @property
    def merge(self) -> int:
        """Patches along a side of a token."""
        return 1

    @property
    def tower_layers(self) -> nn.ModuleList:
        """Layers of the tower."""
        return self.tower.transformer.layers

    def hooks(self) -> list[Any]:
        """Hook the tower, which gets the sizes of the images, and the projector."""
        assert self.projector is not None
        return [
            self.tower.register_forward_pre_hook(self._read_sizes, with_kwargs=True),
            self.projector.register_forward_hook(self._capture_patches),
        ]

    def _read_sizes(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        pixels, sizes = (*args, None)[0], kwargs.get("image_sizes")
        if sizes is None:
            pixels = kwargs["pixel_values"] if pixels is None else pixels
            sizes = [pixels.shape[-2:]] * len(pixels)
        sizes = sizes.tolist() if isinstance(sizes, Tensor) else sizes
        patch = self.tower.patch_size
        self._call.grids = [(height // patch, width // patch) for height, width in sizes]

    def _capture_patches(self, _module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> None:
        patches, merge = self._call.grids, self.merge
        grids = [(height // merge, width // merge) for height, width in patches]
        lengths = [height * width for height, width in grids]
        features = output.reshape(-1, output.shape[-1]).split(lengths)
        taken = self._take_rows().items()
        rows: dict[str, Any] = {need: self._by_token(values, patches) for need, values in taken}
        self.capture = Capture(features, features, grids, **rows)

    def _by_token(self, rows: Tensor, patches: list[tuple[int, int]]) -> list[Tensor]:
        """Return attention received per image; `rows` are means over the queries of all images."""
        rows = rows.flatten() * rows.numel()
        counts = [height * width for height, width in patches]
        return [
            F.avg_pool2d((own / len(own)).view(1, *grid), self.merge).flatten()
            for own, grid in zip(rows.split(counts), patches, strict=True)
        ]
