"""The five families: where their parts live, and the few things each does its own way."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.tokens.hosts.host import Capture, Host


class Llava(Host):
    """LLaVA: a CLIP tower (features of the last layer but one, [CLS] cut off), a Llama."""

    family = "LLaVA"
    image_inputs = ("pixel_values", "vision_feature_layer", "vision_feature_select_strategy")

    @property
    def has_cls(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A SigLIP tower has none, and then nothing is cut off."""
        return self.config.vision_feature_select_strategy == "default"

    @property
    def feature_width(self) -> int:
        """Several layers may be concatenated."""
        layers = self.config.vision_feature_layer
        return self.tower.config.hidden_size * (1 if isinstance(layers, int) else len(layers))

    @property
    def supply(self) -> int | None:
        """Fixed resolution."""
        tower = self.tower.config
        return (tower.image_size // tower.patch_size) ** 2

    @property
    def tower_attention(self) -> nn.Module:
        """hidden_states[0] are the embeddings, hidden_states[i] the output of layer i - 1."""
        layers = getattr(self.tower, "vision_model", self.tower).encoder.layers
        chosen = self.config.vision_feature_layer
        chosen = chosen if isinstance(chosen, int) else chosen[-1]
        output = chosen if chosen >= 0 else len(layers) + 1 + chosen
        return layers[max(output - 1, 0)].self_attn

    def check(self) -> None:
        """A Pixtral tower flattens images of any shape into one row."""
        super().check()
        if self.tower.config.model_type == "pixtral":
            raise InputError(
                "LLaVA with a Pixtral tower: images of free shape are not supported here; "
                "expected a CLIP or SigLIP tower, or another host (Qwen2.5-VL)"
            )


class PaliGemma(Host):
    """PaliGemma: SigLIP, one linear layer, Gemma; prefix attention, positions from 1."""

    family = "PaliGemma"
    first_position = 1

    @property
    def supply(self) -> int | None:
        """Fixed resolution."""
        tower = self.tower.config
        return (tower.image_size // tower.patch_size) ** 2

    @property
    def tower_attention(self) -> nn.Module:
        """The last layer's."""
        return getattr(self.tower, "vision_model", self.tower).encoder.layers[-1].self_attn


class InternVL(Host):
    """InternVL: 2x2 patches are shuffled into one token before the projector; images are tiled."""

    family = "InternVL"
    image_inputs = ("pixel_values", "vision_feature_layer", "vision_feature_select_strategy")

    @property
    def has_cls(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the config says."""
        return self.config.vision_feature_select_strategy == "default"

    @property
    def feature_width(self) -> int:
        """Patches of a token side by side."""
        return self.tower.config.hidden_size * int(1 / self.config.downsample_ratio) ** 2

    @property
    def supply(self) -> int | None:
        """Tokens of a tile."""
        tower = self.tower.config
        image, patch = _side(tower.image_size), _side(tower.patch_size)
        return int(image // patch * self.config.downsample_ratio) ** 2

    @property
    def tower_attention(self) -> nn.Module:
        """Of the layer whose output is taken."""
        layers = self.tower.encoder.layer
        chosen = self.config.vision_feature_layer
        output = chosen if chosen >= 0 else len(layers) + 1 + chosen
        return layers[max(output - 1, 0)].attention

    def rows_to_tokens(
        self, rows: Float[Tensor, "images patches"]
    ) -> Float[Tensor, "images tokens"]:
        """Shuffled like the features, then the mean of a token's patches."""
        side = int(rows.shape[1] ** 0.5)
        squares = rows.reshape(len(rows), side, side, 1)
        shuffled = self.core.pixel_shuffle(squares, scale_factor=self.config.downsample_ratio)
        return shuffled.reshape(len(rows), -1, shuffled.shape[-1]).mean(-1)


class SmolVLM(Host):
    """SmolVLM: SigLIP, pixel shuffle and one linear layer, Llama; an extra axis of images."""

    family = "SmolVLM"
    text_name = "text_model"
    projector_name = "connector"
    tower_name = "vision_model"
    image_inputs = ("pixel_values", "pixel_attention_mask")

    def find_projector(self) -> nn.Module:
        """What stands behind the pixel shuffle."""
        return self.core.connector.modality_projection

    @property
    def feature_width(self) -> int:
        """Patches of a token side by side."""
        return self.tower.config.hidden_size * self.config.scale_factor**2

    @property
    def supply(self) -> int | None:
        """Tokens of a sub-image."""
        tower = self.tower.config
        return (tower.image_size // tower.patch_size // self.config.scale_factor) ** 2

    def rows_to_tokens(
        self, rows: Float[Tensor, "images patches"]
    ) -> Float[Tensor, "images tokens"]:
        """Shuffled like the features, then the mean of a token's patches."""
        connector = self.core.connector
        return connector.pixel_shuffle(rows.unsqueeze(-1), connector.scale_factor).mean(-1)


class Qwen25VL(Host):
    """Qwen2.5-VL: grids of any size, positions with three axes, the projector inside the tower."""

    family = "Qwen2.5-VL"
    projector_name = None
    tower_name = "visual"
    mrope = True
    image_inputs = ("pixel_values", "image_grid_thw")

    @property
    def feature_width(self) -> int:
        """The tower returns what the language model reads."""
        return self.text_width

    @property
    def tower_attention(self) -> nn.Module:
        """The last block's, which sees the whole image in the released models."""
        return self.tower.blocks[-1].attn

    def hooks(self) -> list[Any]:
        """On the tower, whose output is already projected."""
        return [self.tower.register_forward_hook(self._keep_tower, with_kwargs=True)]

    def _keep_tower(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        grid: Tensor = kwargs["grid_thw"] if "grid_thw" in kwargs else args[1]
        merge = self.tower.spatial_merge_size
        grids = [(t * h // merge, w // merge) for t, h, w in grid.tolist()]
        lengths = [rows * columns for rows, columns in grids]
        features = output.pooler_output.split(lengths)
        rows = self._take_rows()
        cls_row = None if rows is None else self._unwindow(rows, grid).split(lengths)
        self.capture = Capture(features, features, grids, cls_row)

    def _unwindow(self, rows: Tensor, grid: Tensor) -> Tensor:
        """Mean over the patches of a token, from the tower's windows back to raster order."""
        from transformers.vision_utils import get_vision_window_index

        window_index, _ = get_vision_window_index(
            grid,
            spatial_merge_size=self.tower.spatial_merge_size,
            window_size=self.tower.window_size,
            patch_size=self.tower.patch_size,
        )
        tokens = rows.reshape(-1, self.tower.spatial_merge_unit).mean(-1)
        return tokens[window_index.argsort().to(tokens.device)]

    def prompt_positions(
        self, inputs: Mapping[str, Any], input_ids: Int[Tensor, "batch length"]
    ) -> Int[Tensor, "..."]:
        """Computed on the full grid, before anything is dropped; sets `rope_deltas`."""
        kinds, grid = inputs.get("mm_token_type_ids"), inputs.get("image_grid_thw")
        if kinds is None or grid is None:
            length = input_ids.shape[1]
            return torch.arange(length, device=input_ids.device).expand(3, len(input_ids), length)
        positions, deltas = self.core.get_rope_index(
            input_ids,
            image_grid_thw=grid,
            attention_mask=inputs.get("attention_mask"),
            mm_token_type_ids=kinds,
        )
        self.core.rope_deltas = deltas
        return positions

    def position_offsets(
        self, positions: Int[Tensor, "..."], mask: Int[Tensor, "batch length"] | None
    ) -> Int[Tensor, "batch 1"] | None:
        """Text goes on where the largest position of the image ended: `rope_deltas`, per prompt."""
        length = positions.shape[-1]
        count = length if mask is None else mask[:, -length:].sum(-1)
        return (positions[-3:].amax((0, 2)) + 1 - count)[:, None]

    def later_positions(
        self,
        given: Int[Tensor, "..."] | None,
        offsets: Int[Tensor, "batch 1"] | None,
        mask: Int[Tensor, "batch length"] | None,
        past: int,
        new: int,
        device: torch.device,
    ) -> Int[Tensor, "..."]:
        """By the prompt's own offsets.

        In a later turn `generate` would take the `rope_deltas` of the latest prompt that the model
        saw, of whatever conversation or thread; such positions have one row.
        """
        if offsets is None or (given is not None and (given.ndim < 3 or given.shape[0] > 1)):
            return super().later_positions(given, offsets, mask, past, new, device)
        if mask is not None:
            text = mask.long().cumsum(-1)[:, -new:] - 1
        else:
            text = torch.arange(past, past + new, device=device)[None]
        positions = text.to(device) + offsets.to(device)
        return positions[None] if given is not None else positions.expand(3, -1, -1)

    def logical_length(
        self, position_ids: Int[Tensor, "..."], offsets: Int[Tensor, "batch 1"] | None
    ) -> int:
        """Rows: text alone (4), shifted by the offsets (1 or 3)."""
        last = position_ids[0][..., -1:]
        if position_ids.shape[0] != 4 and offsets is not None:
            last = last - offsets.to(last.device)
        return int(last.max()) + 1

    def state(self) -> dict[str, Any]:
        """What positions of later turns start from."""
        return {"rope_deltas": self.core.rope_deltas}


def _side(size: Any) -> int:
    return size if isinstance(size, int) else size[0]
