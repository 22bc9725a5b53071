"""The scene graph: the complete description of a batch of scenes, as integer tensors.

Positions are in 1/4096 of the image's width and height, radii in 1/4096 of its shorter side, depth
in millimetres. Integers only, so that CPU and GPU make the same graph from the same key.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes import draws, words
from eligo.scenes.config import GRID, SPLITS, SceneConfig, Split
from eligo.scenes.words import COLOUR, SHAPE, SIZE

UNIT = 4096
"""Image width or height in the graph's units."""
OBJECT, DECOY, CAMOUFLAGED, PAINTED = range(4)
NUM_BINDINGS = 10
"""Nonce classes of the binding task."""

_JITTER = 205  # 5 % of a side: neighbours overlap by a quarter at the most
_MAX_REPEATS = 4
_PARTS = len(words.COLOURS) * len(words.TEXTURES)


Batched = TypeVar("Batched")


def take(batched: Batched, rows: slice | Tensor, **changes: Any) -> Batched:
    """Return rows of a dataclass whose tensors begin with the scene axis, with `changes`."""
    for field in fields(batched):  # pyright: ignore[reportArgumentType]
        value = getattr(batched, field.name)
        if torch.is_tensor(value) and field.name not in changes:
            changes[field.name] = value[rows]
    return replace(batched, **changes)  # pyright: ignore[reportArgumentType,reportReturnType]


@dataclass(frozen=True)
class SceneGraph:
    """A batch of scenes. Slots that hold nothing have `exists` False and arbitrary values."""

    config: SceneConfig
    split: Split
    indices: Int64[Tensor, " scenes"]
    keys: Int64[Tensor, " scenes"]
    exists: Bool[Tensor, "scenes slots"]
    kind: Int64[Tensor, " slots"]
    """OBJECT, DECOY, CAMOUFLAGED or PAINTED; the same in every scene."""
    attributes: Int64[Tensor, "scenes slots 4"]
    """Size, colour, texture, shape."""
    x: Int64[Tensor, "scenes slots"]
    y: Int64[Tensor, "scenes slots"]
    radius: Int64[Tensor, "scenes slots"]
    depth: Int64[Tensor, "scenes slots"]
    solid: Bool[Tensor, "scenes slots"]
    """Whether it has its own depth; otherwise it is painted on the wall or floor."""
    wall: Int64[Tensor, " scenes"]
    """Index of the wall colour; `floor` likewise."""
    floor: Int64[Tensor, " scenes"]
    horizon: Int64[Tensor, " scenes"]
    """Where the wall meets the floor."""
    wall_depth: Int64[Tensor, " scenes"]
    near_depth: Int64[Tensor, " scenes"]
    """Depth of the floor at the lower edge of the image."""
    twin: Bool[Tensor, "scenes twins"]
    """Per twin pair: whether the second name applies in this scene."""
    binding: Int64[Tensor, "scenes codes"]
    """Nonce class of each colour-texture code (colour * 4 + texture) in this scene."""

    def __len__(self) -> int:
        return self.exists.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "SceneGraph":
        """Return some of the scenes."""
        return take(self, rows, kind=self.kind)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.exists.device

    @property
    def askable(self) -> Bool[Tensor, "scenes slots"]:
        """Objects that questions and captions may mention: solid ones that RGB shows."""
        return self.exists & (self.kind == OBJECT)

    @property
    def held_out(self) -> Bool[Tensor, "scenes slots"]:
        """Objects with a colour-shape pair that occurs in the test split only."""
        return self.exists & is_held_out(self.attributes[..., COLOUR], self.attributes[..., SHAPE])

    def order(self) -> Int64[Tensor, "scenes slots"]:
        """Return the slots from far to near, in painting order, empty slots included."""
        slots = torch.arange(self.exists.shape[1], device=self.device)
        # Flat things are on the background, behind all solid ones. Camouflaged ones come next: they
        # must not cover a visible neighbour, even one that is further away.
        far = torch.where(self.kind == CAMOUFLAGED, self.depth + (1 << 19), self.depth)
        far = torch.where(self.solid, far, 1 << 20)
        return (far * 64 + slots).argsort(-1, descending=True)


def is_held_out(
    colour: Int64[Tensor, "*batch"], shape: Int64[Tensor, "*batch"]
) -> Bool[Tensor, "*batch"]:
    """Whether colour and shape are a pair that only the test split has."""
    return shape == (3 * colour + 1) % len(words.SHAPES)  # words.HELD_OUT as arithmetic


def _draw_attributes(
    key: Int64[Tensor, " scenes"], config: SceneConfig, hold_out: bool
) -> Int64[Tensor, "scenes slots 4"]:
    """Attributes of all slots: independent and uniform, then repeats, then no held-out pairs."""
    count = config.num_slots
    values = torch.stack(
        [
            draws.integers(key, name, count, len(names))
            for name, names in zip(words.ATTRIBUTES, words.VALUES, strict=True)
        ],
        dim=-1,
    )
    mode = draws.integer(key, "repeat mode", 3)[:, None]  # colour, shape, both
    if config.repeats:
        size = 1 + draws.integer(key, "repeat size", _MAX_REPEATS)
        member = torch.arange(count, device=key.device) < size[:, None]
        for attribute, other in ((COLOUR, 1), (SHAPE, 0)):
            repeated = member & (mode != other)
            values[..., attribute] = torch.where(
                repeated, values[:, :1, attribute], values[..., attribute]
            )
    if hold_out:
        colour, shape = values[..., COLOUR], values[..., SHAPE]
        # Redraw, uniformly over the seven other values, the attribute that repeats do not share; if
        # they share both, all of them get the same new value.
        other = draws.integers(key, "redraw", count, 7)
        other = torch.where(mode == 2, other[:, :1], other)
        held = is_held_out(colour, shape)
        new_shape = (shape + 1 + other) % 8
        new_colour = (colour + 1 + other) % 8
        redraw_colour = mode == 1
        values[..., SHAPE] = torch.where(held & ~redraw_colour, new_shape, shape)
        values[..., COLOUR] = torch.where(held & redraw_colour, new_colour, colour)
    return values


def background_depth(
    y: Int64[Tensor, " scenes *places"],
    horizon: Int64[Tensor, " scenes"],
    wall: Int64[Tensor, " scenes"],
    near: Int64[Tensor, " scenes"],
) -> Int64[Tensor, " scenes *places"]:
    """Return the depth of wall or floor at height y; on the floor, 1/depth is linear in y."""
    shape = (-1,) + (1,) * (y.ndim - 1)
    horizon, wall, near = horizon.view(shape), wall.view(shape), near.view(shape)
    span = UNIT - horizon
    below = (y.clamp(max=UNIT) - horizon).clamp(min=0)
    return wall * near * span // ((span - below) * near + below * wall)


def split_keys(
    seed: int,
    split: Split,
    indices: Int64[Tensor, " scenes"] | range,
    device: torch.device | str = "cpu",
) -> tuple[Int64[Tensor, " scenes"], Int64[Tensor, " scenes"]]:
    """Return indices of a split as a tensor, and their keys."""
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")
    if isinstance(indices, range):
        indices = torch.arange(indices.start, indices.stop, indices.step)
    indices = indices.to(device)
    return indices, draws.scene_keys(seed, SPLITS.index(split), indices)


def draw_scenes(
    config: SceneConfig,
    split: Split,
    indices: Int64[Tensor, " scenes"] | range,
    device: torch.device | str = "cpu",
) -> SceneGraph:
    """Draw the scenes with these indices of a split.

    >>> graph = draw_scenes(SceneConfig(), "train", range(4))
    >>> graph.attributes.shape
    torch.Size([4, 11, 4])
    """
    indices, key = split_keys(config.seed, split, indices, device)
    counts = (config.max_objects, config.decoys, config.camouflaged, config.painted)
    kind = torch.repeat_interleave(
        torch.arange(4, device=device), torch.tensor(counts, device=device), output_size=sum(counts)
    )
    slots = torch.arange(config.num_slots, device=device)
    rank = slots - torch.tensor((0, *counts[:3]), device=device).cumsum(0)[kind]

    span = config.max_objects - config.min_objects + 1
    present = torch.stack(
        [config.min_objects + draws.integer(key, "number of objects", span)]
        + [
            draws.integer(key, f"number of {name}", most + 1)
            for name, most in zip(("decoys", "camouflaged", "painted"), counts[1:], strict=True)
        ],
        dim=-1,
    )  # (scenes, kinds)
    exists = rank < present[:, kind]

    attributes = _draw_attributes(key, config, hold_out=split != "test")
    cell = draws.permutations(key, "cell", GRID * GRID)[:, : config.num_slots]
    step = UNIT // GRID
    jitter = draws.integers(key, "jitter", 2 * config.num_slots, 2 * _JITTER + 1) - _JITTER
    x = (cell % GRID) * step + step // 2 + jitter[:, : config.num_slots]
    y = (cell // GRID) * step + step // 2 + jitter[:, config.num_slots :]
    radii = torch.tensor([round(radius * UNIT) for radius in config.radii], device=device)
    stretch = 920 + draws.integers(key, "radius", config.num_slots, 161)  # +-8 %
    radius = radii[attributes[..., SIZE]] * stretch // 1000

    horizon = 1850 + draws.integer(key, "horizon", 800)
    wall_depth = 3500 + draws.integer(key, "wall depth", 2500)
    near_depth = 1200 + draws.integer(key, "near depth", 400)
    lowest = y + radius * config.shorter_side // config.height
    behind = background_depth(lowest, horizon, wall_depth, near_depth)
    # Camouflaged things are closer to the background than visible ones.
    fraction = torch.where(kind == CAMOUFLAGED, 750, 450)
    fraction = fraction + draws.integers(key, "depth", config.num_slots, 101) * torch.where(
        kind == CAMOUFLAGED, 1, 2
    )
    solid = (kind == OBJECT) | (kind == CAMOUFLAGED)
    solid_decoy = draws.integers(key, "solid decoy", config.num_slots, 2) == 1
    return SceneGraph(
        config=config,
        split=split,
        indices=indices,
        keys=key,
        exists=exists,
        kind=kind,
        attributes=attributes,
        x=x,
        y=y,
        radius=radius,
        depth=behind * fraction // 1000,
        solid=solid | ((kind == DECOY) & solid_decoy),
        wall=draws.integer(key, "wall", len(words.WALL_RGB)),
        floor=draws.integer(key, "floor", len(words.FLOOR_RGB)),
        horizon=horizon,
        wall_depth=wall_depth,
        near_depth=near_depth,
        twin=draws.integers(key, "twin", len(words.TWINS), 2) == 1,
        binding=draws.integers(key, "binding", _PARTS, NUM_BINDINGS),
    )
