"""Shapes of a host that determine its cost, read from its config; no weights are needed.

A multiply-add is two FLOPs. Only matrix products are counted (projections, feed-forward,
attention), as by the FLOP counter of torch, and without the head of the language model.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import reading

Projector = tuple[tuple[int, int], ...]
_PLAIN_FEED_FORWARD = {"opt", "gpt2", "gpt_neox", "phi", "bloom"}  # two matrices; others are gated


@dataclass(frozen=True)
class LayerShape:
    """One transformer layer."""

    width: int
    hidden: int
    """Width of the feed-forward part."""
    heads: int
    kv_heads: int
    head_size: int
    matrices: int = 3
    """Matrices of the feed-forward part: 3 if it is gated, else 2."""

    def flops(
        self, tokens: int | float, *, causal: bool = True, window: int | None = None
    ) -> float:
        """Return `2 [n d (2 h e + 2 h_kv e) + 3 n d f + h e n (n + 1)]`.

        The last term is 2 h e n^2 without a causal mask, and 2 h e n w with a window of w.
        """
        inner = self.heads * self.head_size
        projections = 2 * inner + 2 * self.kv_heads * self.head_size + self.matrices * self.hidden
        keys = (tokens + 1) / 2 if causal else min(tokens, window or tokens)
        return 2.0 * (tokens * self.width * projections + 2 * inner * tokens * keys)

    @property
    def cached_values(self) -> int:
        """Values of one token in the key-value cache."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class TowerShape:
    """The vision tower; a run encodes one image or tile."""

    layer: LayerShape
    num_layers: int
    patch_values: int
    """Values of a patch, such as 3 x 14 x 14."""
    tokens_per_run: int | None = None
    """Vision tokens of one run; None: one run encodes them all."""
    patches_per_token: int = 1
    """Patches that become one vision token (pixel shuffle, patch merger)."""
    extra_tokens: int = 0
    """Extra tokens, such as [CLS]."""
    window: int | None = None
    """Attention window in patches of most layers; None: full attention."""
    num_full_layers: int = 0
    """Layers with full attention, in a tower with windows."""

    @property
    def feature_width(self) -> int:
        """Width of a vision token before the projector."""
        return self.layer.width * self.patches_per_token

    def flops(self, vision: int) -> float:
        """Return the FLOPs to encode `vision` tokens."""
        runs = 1 if self.tokens_per_run is None else vision / self.tokens_per_run
        patches = vision / runs * self.patches_per_token
        tokens = patches + self.extra_tokens
        whole = self.num_layers if self.window is None else self.num_full_layers
        layers = whole * self.layer.flops(tokens, causal=False)
        if self.window is not None:
            windowed = self.layer.flops(tokens, causal=False, window=self.window)
            layers += (self.num_layers - whole) * windowed
        return runs * (layers + 2 * patches * self.patch_values * self.layer.width)


@dataclass(frozen=True)
class HostShape:
    """A vision-language model: tower, projector, language model."""

    name: str
    layer: LayerShape
    """A layer of the language model."""
    num_layers: int
    vision: int | None = None
    """Vision tokens of one image; None if they depend on its size."""
    tower: TowerShape | None = None
    projector: Projector = ()
    """Input and output widths of its linear layers."""
    projects_again: bool = True
    """Whether stage 1 merges tower features, which are then projected a second time (the host has
    projected all of them before). False: it merges projected features."""
    causal: bool = True
    """False for full attention within the prompt (PaliGemma)."""

    @property
    def feature_width(self) -> int:
        """Width of the features in stage 1."""
        return self.projector[0][0] if self.projects_again and self.projector else self.layer.width

    def tower_flops(self, vision: int) -> float:
        """Return the FLOPs of the vision tower."""
        return self.tower.flops(vision) if self.tower else 0.0

    def projector_flops(self, vision: int) -> float:
        """Return the FLOPs of the projector."""
        return 2.0 * vision * sum(before * after for before, after in self.projector)

    @classmethod
    def of(cls, host: Any) -> "HostShape":
        """Read the shape of a model or of its config."""
        return shape_of(getattr(host, "config", host))

    @classmethod
    def load(cls, folder: str | Path) -> "HostShape":
        """Read the `config.json` of a model: a folder, a shipped name, or a name on the hub."""
        from transformers import AutoConfig

        from eligo.pretrained.load import find_host, load_part

        config = load_part(AutoConfig, find_host(folder, weights=False))
        with reading(folder, f"a config.json with the sizes of a {config.model_type}"):
            return shape_of(config)


def can_count(host: Any) -> bool:
    """Return whether the cost of a model is known: dense language models of known families.

    >>> from transformers import LlamaConfig
    >>> can_count(LlamaConfig())
    False
    """
    try:
        HostShape.of(host)
    except InputError:
        return False
    return True


def shape_of(config: Any) -> HostShape:
    """Return the shape that a config of `transformers` describes."""
    reader = _READERS.get(getattr(config, "model_type", ""))
    if reader is None:
        raise InputError(
            f"cannot count the cost of a {getattr(config, 'model_type', type(config).__name__)}; "
            f"known hosts: {', '.join(_READERS)} (to add one, see docs/adding_a_host.md)"
        )
    return reader(config)


def text_layer(config: Any) -> LayerShape:
    """Return a layer of the language model: Llama, Mistral, Qwen2, Gemma and similar."""
    for name in ("num_experts", "num_local_experts"):
        if getattr(config, name, None):
            raise InputError(f"got a language model with {name}; only dense ones can be counted")
    heads, width = config.num_attention_heads, config.hidden_size
    return LayerShape(
        width,
        config.intermediate_size,
        heads,
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or width // heads,
        2 if config.model_type in _PLAIN_FEED_FORWARD else 3,
    )


def _vision_layer(config: Any) -> LayerShape:
    """Return a layer of a plain vision transformer: CLIP, SigLIP, InternViT, DINOv2."""
    heads, width = config.num_attention_heads, config.hidden_size
    hidden = getattr(config, "intermediate_size", None) or int(width * config.mlp_ratio)
    return LayerShape(width, hidden, heads, heads, width // heads, matrices=2)


def _side(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


def _square_tower(config: Any, merge: int = 1, extra_tokens: int = 0) -> TowerShape:
    """Return a tower of one image size; `merge` x `merge` patches become one token."""
    patch = _side(config.patch_size)
    patches = (_side(config.image_size) // patch) ** 2
    return TowerShape(
        _vision_layer(config),
        config.num_hidden_layers,
        config.num_channels * patch**2,
        patches // merge**2,
        merge**2,
        extra_tokens,
    )


def _llava(config: Any) -> HostShape:
    vision = config.vision_config
    if vision.model_type == "pixtral":
        return _pixtral(config)
    has_cls = int(vision.model_type in ("clip_vision_model", "dinov2"))
    tower, layer = _square_tower(vision, extra_tokens=has_cls), text_layer(config.text_config)
    layers = config.vision_feature_layer
    features = vision.hidden_size * (len(layers) if isinstance(layers, list | tuple) else 1)
    projector = ((features, layer.width), (layer.width, layer.width))
    return _with_square(config, layer, tower, projector)


def _internvl(config: Any) -> HostShape:
    merge = round(1 / config.downsample_ratio)
    tower, layer = _square_tower(config.vision_config, merge, 1), text_layer(config.text_config)
    projector = ((tower.feature_width, layer.width), (layer.width, layer.width))
    return _with_square(config, layer, tower, projector)


def _paligemma(config: Any) -> HostShape:
    tower, layer = _square_tower(config.vision_config), text_layer(config.text_config)
    projector = ((tower.feature_width, config.vision_config.projection_dim),)
    return _with_square(config, layer, tower, projector, causal=False)


def _smolvlm(config: Any) -> HostShape:
    tower = _square_tower(config.vision_config, config.scale_factor)
    layer = text_layer(config.text_config)
    return _with_square(config, layer, tower, ((tower.feature_width, layer.width),))


def _with_square(
    config: Any,
    layer: LayerShape,
    tower: TowerShape,
    projector: Projector,
    **others: bool,
) -> HostShape:
    count = config.text_config.num_hidden_layers
    vision = tower.tokens_per_run
    return HostShape(config.model_type, layer, count, vision, tower, projector, **others)


def _gemma3(config: Any) -> HostShape:
    layer, vision = text_layer(config.text_config), config.vision_config
    merge = _side(vision.image_size) // _side(vision.patch_size)
    tower = _square_tower(vision, merge // math.isqrt(config.mm_tokens_per_image))
    projector = ((vision.hidden_size, layer.width),)
    return _with_square(config, layer, tower, projector, projects_again=False)


def _tiled(config: Any) -> HostShape:
    """LLaVA-NeXT and OneVision: newlines, and borders that are cut off, count as tiles."""
    host = _llava(config)
    return replace(host, vision=None, projects_again=False)


def _qwen2_vl(config: Any) -> HostShape:
    vision = config.vision_config
    width = vision.embed_dim
    heads = vision.num_heads
    layer = LayerShape(width, int(width * vision.mlp_ratio), heads, heads, width // heads, 2)
    return _with_grid(config, layer, _patch_merger(vision, width, vision.hidden_size))


def _qwen2_5_vl(config: Any) -> HostShape:
    vision = config.vision_config
    return _with_grid(
        config,
        _grid_layer(vision, vision.intermediate_size, 3),
        _patch_merger(vision, vision.hidden_size, vision.out_hidden_size),
        window=(vision.window_size // vision.patch_size) ** 2,
        num_full_layers=len(vision.fullatt_block_indexes),
    )


def _qwen3_vl(config: Any) -> HostShape:
    vision = config.vision_config
    merger = _patch_merger(vision, vision.hidden_size, vision.out_hidden_size)
    mergers = merger * (1 + len(vision.deepstack_visual_indexes))
    return _with_grid(config, _grid_layer(vision, vision.intermediate_size, 2), mergers)


def _glm4v(config: Any) -> HostShape:
    vision = config.vision_config
    out, hidden = vision.out_hidden_size, vision.intermediate_size
    merged = (vision.hidden_size * vision.spatial_merge_size**2, out)
    projector = (merged, (out, out), (out, hidden), (out, hidden), (hidden, out))
    return _with_grid(config, _grid_layer(vision, out, 3), projector)


def _grid_layer(vision: Any, hidden: int, matrices: int) -> LayerShape:
    width, heads = vision.hidden_size, vision.num_heads
    return LayerShape(width, hidden, heads, heads, width // heads, matrices)


def _patch_merger(vision: Any, width: int, out: int) -> Projector:
    merged = width * vision.spatial_merge_size**2
    return ((merged, merged), (merged, out))


def _with_grid(config: Any, layer: LayerShape, projector: Projector, **windows: int) -> HostShape:
    """Return a host that takes images of any size; its tower ends with the projector."""
    vision = config.vision_config
    tower = TowerShape(
        layer,
        vision.depth,
        vision.in_channels * vision.temporal_patch_size * vision.patch_size**2,
        patches_per_token=vision.spatial_merge_size**2,
        **windows,
    )
    return _of_any_size(config, tower, projector)


def _pixtral(config: Any) -> HostShape:
    width = config.text_config.hidden_size
    projector = ((config.vision_config.hidden_size, width), (width, width))
    return _of_any_size(config, _pixtral_tower(config.vision_config, 1), projector)


def _mistral3(config: Any) -> HostShape:
    merge, width = config.spatial_merge_size, config.vision_config.hidden_size
    projector = ((width * merge**2, width), *_pixtral(config).projector)
    return _of_any_size(config, _pixtral_tower(config.vision_config, merge), projector)


def _pixtral_tower(vision: Any, merge: int) -> TowerShape:
    layer = replace(_vision_layer(vision), matrices=3)
    values = vision.num_channels * vision.patch_size**2
    return TowerShape(layer, vision.num_hidden_layers, values, patches_per_token=merge**2)


def _of_any_size(config: Any, tower: TowerShape, projector: Projector) -> HostShape:
    layer, count = text_layer(config.text_config), config.text_config.num_hidden_layers
    return HostShape(config.model_type, layer, count, None, tower, projector, projects_again=False)


_READERS = {
    "llava": _llava,
    "llava_next": _tiled,
    "llava_onevision": _tiled,
    "internvl": _internvl,
    "paligemma": _paligemma,
    "gemma3": _gemma3,
    "smolvlm": _smolvlm,
    "idefics3": _smolvlm,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "glm4v": _glm4v,
    "mistral3": _mistral3,
}

LLAVA_7B = HostShape(
    "LLaVA-1.5-7B",
    LayerShape(4096, 11008, 32, 32, 128),
    32,
    576,
    TowerShape(LayerShape(1024, 4096, 16, 16, 64, matrices=2), 24, 3 * 14 * 14, 576,
               extra_tokens=1),
    ((1024, 4096), (4096, 4096)),
)  # fmt: skip
"""The default shape of `eligo tokens plan`."""
