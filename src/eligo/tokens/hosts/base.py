"""The adapter between pruning and a vision-language model of `transformers` (a host).

A host has a *core* (tower, projector, language model; no head). Projector and tower are captured by
hooks, since `generate` runs them before the first forward pass and passes only their output. To
support another family, subclass `Host` and pass it: `pruning(model, plan, host=MyHost)`.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import __version__
from transformers.masking_utils import create_masks_for_generate

from eligo.errors import EligoError, InputError
from eligo.tokens.hooks.attention import attention_of
from eligo.tokens.reducer import TOWER_ROWS, Need

Positions = Int[Tensor, "..."]
Offsets = Int[Tensor, "batch 1"]
Ids = Int[Tensor, "batch length"]
Patches = Float[Tensor, "images patches"]
TokenValues = Float[Tensor, "images tokens"]

LAYER_KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers of language models that can be pruned."""
_CAPTURE = "eligo_capture"


@dataclass
class Capture:
    """Vision features of a batch: one entry per image (or tile), or per video."""

    features: Sequence[Float[Tensor, "_ width"]]  # input of the projector, if there is one
    projected: Sequence[Float[Tensor, "_ text_width"]]  # input of the language model
    grids: Sequence[tuple[int, int]]  # rows and columns of tokens; frames below each other
    frames: Sequence[int] | None = None  # of each video, in equal parts of the rows; None: images
    cls_row: Sequence[Float[Tensor, " _"]] | None = None  # attention over the tokens
    object_row: Sequence[Float[Tensor, " _"]] | None = None  # the same in a middle layer
    # By layer, then image: what the language model adds to the states after each early layer.
    added: Sequence[Sequence[Float[Tensor, "_ text_width"]]] = ()

    @property
    def num_tokens(self) -> list[int]:
        """Tokens per image."""
        return [len(feature) for feature in self.projected]


class _Call(threading.local):
    """State of one thread between tower, projector and language model."""

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.tower_rows: dict[str, list[Tensor]] = {need: [] for need in TOWER_ROWS}
        self.tower_output: Any = None
        self.is_projecting = False
        self.grids: list[tuple[int, int]] = []


class Host:
    """Adapter of a model family; threads may share one."""

    family: ClassVar[str]
    text_name: ClassVar[str] = "language_model"
    projector_name: ClassVar[str | None] = "multi_modal_projector"
    tower_name: ClassVar[str] = "vision_tower"
    first_position: ClassVar[int] = 0
    """Position of the first token."""
    mrope: ClassVar[bool] = False
    """Whether positions have several axes."""
    object_depth: ClassVar[float] = 3 / 8
    """Depth of the tower layer whose attention shows objects (HiPrune: 9 of CLIP's 24)."""
    reduces_projected: ClassVar[bool] = False
    """Whether stage 1 gets projected features: the projector does not work token by token."""
    budget_unit: ClassVar[str] = "image"
    """What a budget counts tokens of."""
    can_record: ClassVar[bool] = False
    """Whether tower and language model can be recorded as CUDA graphs."""
    newer_only: ClassVar[bool] = False
    """Whether older transformers, which encode images inside the core only, are refused."""
    image_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Arguments of the core that `get_image_features` takes too."""
    video_inputs: ClassVar[tuple[str, ...]] = ()
    """The same of `get_video_features`; empty: videos are refused."""

    def __init__(self, model: nn.Module) -> None:
        self.outer = model
        """The model with the head, or the core if it was given alone."""
        self.core: Any = getattr(model, "model", model)
        self.config: Any = self.core.config
        self.text: Any = getattr(self.core, self.text_name)
        self.tower: Any = getattr(self.core, self.tower_name)
        self.projector = None if self.projector_name is None else self.find_projector()
        self._call = _Call()
        self._mark = object()  # distinguishes captures from those of another adapter

    @property
    def capture(self) -> Capture | None:
        """Features of the latest images of this thread."""
        return self._call.capture

    @capture.setter
    def capture(self, capture: Capture) -> None:
        self._call.capture = capture
        output, self._call.tower_output = self._call.tower_output, None
        if output is not None:
            setattr(output, _CAPTURE, (self._mark, capture))

    @property
    def tower_rows(self) -> dict[str, list[Tensor]]:
        """Attention rows of the tower's running call in this thread, by need."""
        return self._call.tower_rows

    def begin_tower(self) -> None:
        """Clear the state of an earlier call of the tower in this thread."""
        self._call.tower_rows = {need: [] for need in TOWER_ROWS}
        self._call.tower_output = None

    def end_tower(self, output: Any) -> None:
        """Store the tower's output, which `get_image_features` completes and returns."""
        if hasattr(output, "pooler_output"):
            self._call.tower_output = output

    def captured(self, outputs: Any) -> Capture | None:
        """Return the capture behind the result of `get_image_features`, from any thread."""
        owner, capture = getattr(outputs, _CAPTURE, (None, None))
        if owner is self._mark:
            return capture
        latest = self.capture
        if owner is None and latest is not None and _shares_memory(outputs, latest.projected):
            return latest
        return None

    def find_projector(self) -> nn.Module:
        """Return the module that maps tower features to the language model, token by token."""
        assert self.projector_name is not None
        return getattr(self.core, self.projector_name)

    @property
    def layers(self) -> nn.ModuleList:
        """Layers of the language model."""
        return self.text.layers

    @property
    def text_width(self) -> int:
        """Width of the language model."""
        return self.text.config.hidden_size

    @property
    def feature_width(self) -> int:
        """Width of the features that stage 1 gets."""
        return self.text_width if self.reduces_projected else self.tower.config.hidden_size

    @property
    def supply(self) -> int | None:
        """Tokens of an image, if all images have equally many."""
        return None

    @property
    def patches_per_side(self) -> int:
        """Patches along a side of an image of fixed size."""
        sizes = (self.tower.config.image_size, self.tower.config.patch_size)
        image, patch = (size if isinstance(size, int) else size[0] for size in sizes)
        return image // patch

    @property
    def has_cls(self) -> bool:
        """Whether the tower's first token is [CLS], which is cut off."""
        return getattr(self.config, "vision_feature_select_strategy", None) == "default"

    @property
    def tower_layers(self) -> nn.ModuleList:
        """Layers of the tower."""
        encoder = getattr(self.tower, "vision_model", self.tower).encoder
        return encoder.layers if hasattr(encoder, "layers") else encoder.layer

    def tower_attention(self, need: Need) -> nn.Module:
        """Return the attention of the layer that gives the features, or of the middle one."""
        layers = self.tower_layers
        middle = layers[max(round(self.object_depth * len(layers)) - 1, 0)]
        layer: Any = self.feature_layer(layers) if need == "cls_row" else middle
        if hasattr(layer, "self_attn"):  # CLIP, SigLIP
            return layer.self_attn
        if hasattr(layer, "attn"):  # Qwen2.5-VL
            return layer.attn
        return getattr(layer.attention, "attention", layer.attention)  # DINOv2, ViT, InternVL

    def feature_layer(self, layers: nn.ModuleList) -> nn.Module:
        """Return the layer that computes `hidden_states[vision_feature_layer]`, or the last one."""
        chosen = getattr(self.config, "vision_feature_layer", -1)
        chosen = chosen if isinstance(chosen, int) else chosen[-1]
        output = chosen if chosen >= 0 else len(layers) + 1 + chosen
        return layers[max(output - 1, 0)]

    @property
    def attention(self) -> str:
        """Attention implementation of the language model."""
        return attention_of(self.text.config)

    @property
    def is_flash(self) -> bool:
        """Whether it is flash attention, which takes masks of keys only."""
        return self.attention.startswith("flash")

    @cached_property
    def windows(self) -> list[int | None]:
        """Columns that each layer sees; None: all of them."""
        config = self.text.config
        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None) or []
        if not kinds:
            return [window] * len(self.layers)
        if unknown := set(kinds) - set(LAYER_KINDS):
            raise InputError(
                f"{self.family}: this language model has layers of kind {sorted(unknown)}; "
                "expected full or sliding-window attention in all"
            )
        if "sliding_attention" in kinds and window is None:
            raise InputError(
                f"{self.family}: this language model has sliding-window layers without a size; "
                "expected sliding_window in its config"
            )
        return [window if kind == "sliding_attention" else None for kind in kinds]

    @cached_property
    def has_windows(self) -> bool:
        """Whether some layer sees a window of columns only."""
        return any(window is not None for window in self.windows)

    def prompt_masks(self, inputs: Mapping[str, Any]) -> list[Tensor | None]:
        """Return the host's own mask of the whole prompt for each layer; None: causal."""
        ids: Tensor = inputs["input_ids"]
        masks = self.make_masks(
            config=self.text.config,
            inputs_embeds=torch.empty(*ids.shape, 0, device=ids.device, dtype=self.text.dtype),
            attention_mask=inputs.get("attention_mask"),
            past_key_values=None,
            position_ids=None,
            token_type_ids=inputs.get("token_type_ids"),
        )
        kinds = getattr(self.text.config, "layer_types", None) or [None] * len(self.layers)
        return [masks[kind] if isinstance(masks, dict) else masks for kind in kinds]

    @property
    def make_masks(self) -> Callable[..., Any]:
        """The function with which the host makes its masks."""
        return create_masks_for_generate

    def rotary(
        self, _layer: int, hidden: Float[Tensor, "batch length width"], positions: Positions
    ) -> tuple[Tensor, Tensor]:
        """Return the rotary tables of a layer."""
        return self.text.rotary_emb(hidden, positions)

    def hooks(self) -> list[Any]:
        """Register the hooks that capture features; return their handles."""
        assert self.projector is not None
        return [self.projector.register_forward_hook(self._capture_output)]

    def _capture_output(self, _module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if self._call.is_projecting:
            return
        features: Tensor = output if self.reduces_projected else args[0]
        side = math.isqrt(output.shape[1])
        if side * side != output.shape[1] or features.shape[:2] != output.shape[:2]:
            raise EligoError(
                f"{self.family}: got {tuple(output.shape)} from the projector, expected a square "
                "grid of tokens per image; free aspect ratios are supported in Qwen2.5-VL"
            )
        taken = self._take_rows().items()
        rows: dict[str, Any] = {need: list(self.rows_to_tokens(values)) for need, values in taken}
        grids = [(side, side)] * len(output)
        self.capture = Capture(list(features), list(output), grids, **rows)

    def _take_rows(self) -> dict[str, Tensor]:
        """Return the recorded rows by need, and forget them."""
        taken = {need: torch.cat(rows) for need, rows in self._call.tower_rows.items() if rows}
        self._call.tower_rows = {need: [] for need in TOWER_ROWS}
        return taken

    def rows_to_tokens(self, rows: Patches) -> TokenValues:
        """Convert attention over patches (without [CLS]) to attention over tokens."""
        return rows

    def encode(self, inputs: Mapping[str, Any]) -> None:
        """Run tower and projector on the images or videos of a forward pass; hooks capture."""
        is_video = inputs.get("pixel_values_videos") is not None
        names = self.video_inputs if is_video else self.image_inputs
        given = {name: inputs[name] for name in names if inputs.get(name) is not None}
        (self.core.get_video_features if is_video else self.core.get_image_features)(**given)

    def project(
        self, features: Float[Tensor, "images tokens width"]
    ) -> Float[Tensor, "images tokens text_width"]:
        """Project reduced tower features to the language model."""
        if self.projector is None or self.reduces_projected:
            return features
        self._call.is_projecting = True  # nothing to capture
        try:
            return self.projector(features)
        finally:
            self._call.is_projecting = False

    def embed(self, input_ids: Ids) -> Float[Tensor, "batch length text_width"]:
        """Return input embeddings; arbitrary ones for placeholders outside of the vocabulary."""
        table = self.core.get_input_embeddings()
        if self.image_token_id >= table.num_embeddings:
            input_ids = input_ids.masked_fill(input_ids == self.image_token_id, 0)
        return table(input_ids)

    @property
    def image_token_id(self) -> int:
        """Id of the image placeholder."""
        return self.config.image_token_id

    def prompt_positions(self, _inputs: Mapping[str, Any], input_ids: Ids) -> Positions:
        """Return the host's default positions of a whole prompt."""
        length = input_ids.shape[1]
        return torch.arange(length, device=input_ids.device)[None] + self.first_position

    def position_offsets(self, _positions: Positions, _mask: Ids | None) -> Offsets | None:
        """Return, per row, how much positions of later text differ from the number of tokens."""
        return None

    def later_positions(
        self, given: Positions | None, _offsets: Offsets | None, _mask: Ids | None,
        past: int, new: int, device: torch.device,
    ) -> Positions:  # fmt: skip
        """Return positions of `new` tokens after `past` others; `given`: those of the caller."""
        if given is not None:
            return given[..., -new:]
        return torch.arange(past, past + new, device=device)[None] + self.first_position

    def logical_length(self, position_ids: Positions, _offsets: Offsets | None) -> int:
        """Return the length of a sequence without padding by its last position (device sync)."""
        return int(position_ids[..., -1].max()) + 1 - self.first_position

    def state(self) -> dict[str, Any]:
        """Return attributes of the core that a forward pass changes; restored on exit."""
        return {}

    def check(self) -> None:
        """Raise for variants of the family that cannot be pruned."""
        if self.newer_only and "mm_encoder_outputs" not in signature(self.core.forward).parameters:
            raise InputError(
                f"{self.family}: is not supported with transformers {__version__}; expected a "
                "newer version: pip install -U transformers"
            )
        if self.has_windows and self.is_flash:
            raise InputError(
                f"{self.family}: flash attention counts columns to find a sliding window, also "
                "removed ones; load the model with attn_implementation='sdpa' (Gemma 2: 'eager')"
            )


def _shares_memory(outputs: Any, projected: Sequence[Tensor]) -> bool:
    """Whether encoder outputs hold the captured features themselves."""
    features = getattr(outputs, "pooler_output", outputs)
    first = features if isinstance(features, Tensor) else next(iter(features), None)
    return (
        isinstance(first, Tensor)
        and first.untyped_storage().data_ptr() == projected[0].untyped_storage().data_ptr()
    )
