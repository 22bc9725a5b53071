"""Qwen2-VL: grids of any size, positions with three axes, the projector inside the tower.

A video is one grid: its frames (pairs of them, `temporal_patch_size`) are stacked in the rows, so
that raster indices count frames, rows and columns, and a budget is that of the whole clip.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from eligo.tokens.hosts.base import Capture, Host, Ids, Offsets, Positions


class Qwen2VL(Host):
    """Stage 1 gets projected features: the tower ends with its own projector."""

    family = "Qwen2-VL"
    projector_name = None
    reduces_projected = True
    tower_name = "visual"
    mrope = True
    object_depth = 1 / 2
    image_inputs = ("pixel_values", "image_grid_thw")
    video_inputs = ("pixel_values_videos", "video_grid_thw")

    @property
    def tower_layers(self) -> nn.ModuleList:
        """Blocks; attention is global in the last and the middle one of the released models."""
        return self.tower.blocks

    def hooks(self) -> list[Any]:
        """Hook the tower, whose output is already projected."""
        return [self.tower.register_forward_hook(self._capture_tower, with_kwargs=True)]

    def _capture_tower(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        grid: Tensor = kwargs["grid_thw"] if "grid_thw" in kwargs else args[1]
        merge = self.tower.spatial_merge_size
        grids = [(t * h // merge, w // merge) for t, h, w in grid.tolist()]
        lengths = [rows * columns for rows, columns in grids]
        features = output.pooler_output.split(lengths)
        rows: dict[str, Any] = {
            need: self.in_raster_order(values.reshape(-1, merge**2).mean(-1), grid).split(lengths)
            for need, values in self._take_rows().items()
        }
        added = [layer.split(lengths) for layer in self.added_features(output)]
        frames: list[int] = grid[:, 0].tolist()
        self.capture = Capture(
            features, features, grids, frames if max(frames) > 1 else None, added=added, **rows
        )

    def added_features(self, _output: Any) -> Sequence[Float[Tensor, "tokens text_width"]]:
        """Return the features that the language model adds after its first layers."""
        return ()

    def in_raster_order(
        self, values: Float[Tensor, " tokens"], _grid: Tensor
    ) -> Float[Tensor, " tokens"]:
        """Return values of the tower's tokens in the order of its output."""
        return values

    def prompt_positions(self, inputs: Mapping[str, Any], input_ids: Ids) -> Positions:
        """Return positions on the full grid, before anything is dropped; set `rope_deltas`."""
        kinds, names = inputs.get("mm_token_type_ids"), ("image_grid_thw", "video_grid_thw")
        grids = {name: inputs[name] for name in names if inputs.get(name) is not None}
        if kinds is None or not grids:
            length = input_ids.shape[1]
            return torch.arange(length, device=input_ids.device).expand(3, len(input_ids), length)
        positions, deltas = self.core.get_rope_index(
            input_ids,
            **grids,
            second_per_grid_ts=inputs.get("second_per_grid_ts"),
            attention_mask=inputs.get("attention_mask"),
            mm_token_type_ids=kinds,
        )
        self.core.rope_deltas = deltas
        return positions

    def position_offsets(self, positions: Positions, mask: Ids | None) -> Offsets | None:
        """Return `rope_deltas` per prompt: text continues after the image's largest position."""
        length = positions.shape[-1]
        count = length if mask is None else mask[:, -length:].sum(-1)
        return (positions[-3:].amax((0, 2)) + 1 - count)[:, None]

    def later_positions(
        self, given: Positions | None, offsets: Offsets | None, mask: Ids | None,
        past: int, new: int, device: torch.device,
    ) -> Positions:  # fmt: skip
        """Apply the prompt's own offsets.

        In a later turn `generate` would use the `rope_deltas` of the model's latest prompt, from
        any conversation or thread; such positions have one row.
        """
        if offsets is None or (given is not None and (given.ndim < 3 or given.shape[0] > 1)):
            return super().later_positions(given, offsets, mask, past, new, device)
        if mask is not None:
            text = mask.long().cumsum(-1)[:, -new:] - 1
        else:
            text = torch.arange(past, past + new, device=device)[None]
        positions = text.to(device) + offsets.to(device)
        return positions[None] if given is not None else positions.expand(3, -1, -1)

    def logical_length(self, position_ids: Positions, offsets: Offsets | None) -> int:
        """Undo the shift: position ids have four rows (unshifted text first), or one or three."""
        last = position_ids[0][..., -1:]
        if position_ids.shape[0] != 4 and offsets is not None:
            last = last - offsets.to(last.device)
        return int(last.max()) + 1

    def state(self) -> dict[str, Any]:
        """Return the offsets of the positions of later turns."""
        return {"rope_deltas": self.core.rope_deltas}
