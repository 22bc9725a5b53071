"""Renders a scene graph: RGB, instances, labels, metric depth.

Painter's algorithm, far to near, vectorised over scenes: every thing is copied, scaled to its size,
from an atlas of shape x texture tiles. Coordinates are integers throughout, so CPU and GPU paint
the same pixels.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil, pi

import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from torch import Tensor

from eligo.scenes import draws, words
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import (
    CAMOUFLAGED,
    DECOY,
    NUM_BINDINGS,
    UNIT,
    SceneGraph,
    background_depth,
)
from eligo.scenes.words import COLOUR, SHAPE, TEXTURE

_TILE = 256  # side of an atlas tile, in texels
_NOISE = 512  # side of the noise tile, in pixels
_OUTSIDE, _BRIGHT, _DARK = range(3)
_TOGETHER = 2048  # scenes of a part in `render_all`
_SHADE = 45  # percent of the colour that the dark parts of a texture keep


def _star(u: Tensor, v: Tensor) -> Tensor:
    """Five points: inside the line from a tip (radius 1) to the next notch (radius 0.45)."""
    angle = (torch.atan2(u, -v) % (2 * pi / 5) - pi / 5).abs()  # 0 at a notch, pi/5 at a tip
    radius = torch.hypot(u, v)
    tip = torch.tensor(pi / 5)
    x, y = radius * torch.cos(tip - angle), radius * torch.sin(tip - angle)
    notch_x, notch_y = 0.45 * torch.cos(tip), 0.45 * torch.sin(tip)
    return (x - 1) * notch_y - y * (notch_x - 1) <= 0


@cache
def _atlas(device: torch.device) -> UInt8[Tensor, "tiles side side"]:
    """Return one tile per shape x texture, then one decoy tile per texture index."""
    axis = (torch.arange(_TILE) + 0.5) * 2 / _TILE - 1
    v, u = torch.meshgrid(axis, axis, indexing="ij")
    squared = u * u + v * v
    inside = {
        "ball": squared <= 1,
        "box": torch.maximum(u.abs(), v.abs()) <= 0.86,
        "cone": (u.abs() <= (v + 1) * 0.55) & (v <= 0.8),
        "ring": (squared <= 1) & (squared >= 0.27),
        "star": _star(u, v),
        "cross": torch.minimum(u.abs(), v.abs()) <= 0.32,
        "gem": 1.3 * u.abs() + v.abs() <= 1,
        "moon": (squared <= 1) & ((u - 0.55) ** 2 + v * v >= 0.52),
    }
    dark = {
        "plain": torch.zeros_like(u, dtype=torch.bool),
        "striped": ((u + v) * 2.2).floor() % 2 == 1,
        "dotted": ((u * 1.9) % 1 - 0.5) ** 2 + ((v * 1.9) % 1 - 0.5) ** 2 <= 0.1,
        "checkered": ((u * 2.4).floor() + (v * 2.4).floor()) % 2 == 1,
    }
    tiles = [
        torch.where(inside[shape], torch.where(dark[texture], _DARK, _BRIGHT), _OUTSIDE)
        for shape in words.SHAPES
        for texture in words.TEXTURES
    ]
    poster = (u.abs() <= 0.96) & (v.abs() <= 0.72)
    blocks = 12
    for index in range(len(words.TEXTURES)):
        bits = draws.integers(torch.tensor(index), "decoy", blocks * blocks, 2).view(blocks, blocks)
        cells = bits.repeat_interleave(_TILE // blocks + 1, 0).repeat_interleave(
            _TILE // blocks + 1, 1
        )[:_TILE, :_TILE]
        tiles.append(torch.where(poster, torch.where(cells == 1, _DARK, _BRIGHT), _OUTSIDE))
    return torch.stack(tiles).to(torch.uint8).to(device)


@cache
def _noise(device: torch.device) -> Int64[Tensor, " pixels"]:
    """Return a tile of triangular noise in [-6, 6]; every scene reads it from its own offset."""
    parts = draws.integers(torch.tensor(0), "noise", 2 * _NOISE * _NOISE, 7).view(2, -1)
    return (parts.sum(0) - 6).to(device)


@cache
def _colours(device: torch.device) -> Int64[Tensor, "colours 3"]:
    return torch.tensor(words.COLOUR_RGB, device=device)


@cache
def _rooms(device: torch.device) -> tuple[Int64[Tensor, "walls 3"], Int64[Tensor, "floors 3"]]:
    return (
        torch.tensor(words.WALL_RGB, device=device),
        torch.tensor(words.FLOOR_RGB, device=device),
    )


@dataclass(frozen=True)
class Rendered:
    """The pixels of a batch of scenes; labels and depth are computed on demand."""

    graph: SceneGraph
    rgb: UInt8[Tensor, "scenes 3 height width"]
    instances: UInt8[Tensor, "scenes height width"]
    """0 is the room, i + 1 the solid thing in slot i."""

    def __getitem__(self, rows: slice | Tensor) -> "Rendered":
        """Return some of the scenes."""
        return Rendered(self.graph[rows], self.rgb[rows], self.instances[rows])

    @property
    def labels(self) -> UInt8[Tensor, "scenes height width"]:
        """Class per pixel, see `label_names`."""
        graph = self.graph
        table = torch.cat([torch.zeros_like(graph.exists[:, :1]), slot_labels(graph)], 1)
        floor = (_rows(graph) >= graph.horizon[:, None]).to(torch.uint8)[:, :, None]
        chosen = table.to(torch.uint8).gather(1, self.instances.flatten(1).long())
        return torch.where(self.instances == 0, floor, chosen.view_as(self.instances))

    @property
    def depth(self) -> Float32[Tensor, "scenes height width"]:
        """Exact depth in metres."""
        graph = self.graph
        rows = background_depth(_rows(graph), graph.horizon, graph.wall_depth, graph.near_depth)
        table = torch.cat([torch.zeros_like(graph.depth[:, :1]), graph.depth], 1)
        chosen = table.gather(1, self.instances.flatten(1).long()).view(self.instances.shape)
        # Divides by a tensor: for a plain number, CUDA multiplies by its rounded inverse.
        thousand = torch.full((), 1000.0, device=rows.device)
        return torch.where(self.instances == 0, rows[:, :, None], chosen).float() / thousand

    def sensor_depth(
        self,
    ) -> tuple[
        Float32[Tensor, "scenes height width"],
        Bool[Tensor, "scenes height width"],
    ]:
        """Return depth as a structured-light camera measures it, and where it is valid.

        Axial noise grows with the square of depth (sigma = 1.2 + 1.9 (z - 0.4)^2 mm: Nguyen, Izadi
        and Lovell, "Modeling Kinect sensor noise", 2012). A tenth of the pixels beside a depth edge
        and one in 200 elsewhere return nothing (0).
        """
        exact = self.depth
        pixels = exact[0].numel()
        normal = _normal(self.graph.keys, "sensor noise", pixels).view_as(exact)
        noisy = exact + normal * (0.0012 + 0.0019 * (exact - 0.4) ** 2)
        edge = torch.zeros_like(exact, dtype=torch.bool)
        for dim in (1, 2):
            size = exact.shape[dim]
            jump = exact.diff(dim=dim).abs() > 0.1 * exact.narrow(dim, 0, size - 1)
            edge.narrow(dim, 0, size - 1).logical_or_(jump)
            edge.narrow(dim, 1, size - 1).logical_or_(jump)
        lottery = draws.integers(self.graph.keys, "sensor holes", pixels, 200).view(exact.shape)
        valid = torch.where(edge, lottery >= 20, lottery >= 1)
        return torch.where(valid, noisy, 0), valid

    def visible_pixels(self) -> Int64[Tensor, "scenes slots"]:
        """Return the number of visible pixels of each slot."""
        slots = self.graph.exists.shape[1]
        counts = torch.zeros(len(self.graph), slots + 1, dtype=torch.int64, device=self.rgb.device)
        flat = self.instances.flatten(1).long()
        return counts.scatter_add_(1, flat, torch.ones_like(flat))[:, 1:]


def _normal(
    keys: Int64[Tensor, " scenes"], stream: str, count: int
) -> Float32[Tensor, "scenes {count}"]:
    """Return nearly normal numbers: standardised sums of four uniform integers."""
    total = draws.integers(keys, stream, 4 * count, 1 << 20).view(-1, 4, count).sum(1)
    return (total - (2 << 20) + 2).float() / ((1 << 20) / 3**0.5)


def _rows(graph: SceneGraph) -> Int64[Tensor, "scenes height"]:
    """Return the y coordinate of every pixel row's centre, in graph units."""
    height = graph.config.height
    row = (2 * torch.arange(height, device=graph.device) + 1) * UNIT // (2 * height)
    return row.expand(len(graph), -1)


def label_names(config: SceneConfig) -> tuple[str, ...]:
    """Return the classes of the label map, in order; binding scenes have nonce classes."""
    if config.binding:
        return ("wall", "floor", *words.NONCE[:NUM_BINDINGS], "clutter")
    return words.LABELS


def slot_labels(graph: SceneGraph) -> Int64[Tensor, "scenes slots"]:
    """Return the class of each slot in the label map."""
    shape, colour, texture = (graph.attributes[..., i] for i in (SHAPE, COLOUR, TEXTURE))
    if graph.config.binding:
        code = colour * len(words.TEXTURES) + texture
        label = 2 + graph.binding.gather(1, code)
    else:
        label = 2 + shape
        if graph.config.twins:
            for pair, (first, second) in enumerate(words.TWINS.items()):
                is_second = (shape == words.SHAPES.index(first)) & graph.twin[:, pair : pair + 1]
                label = torch.where(is_second, words.LABELS.index(second), label)
    clutter = label_names(graph.config).index("clutter")
    return torch.where(graph.kind == DECOY, clutter, label)


def render(graph: SceneGraph) -> Rendered:
    """Paint a batch of scenes.

    >>> from eligo.scenes import SceneConfig, draw_scenes
    >>> render(draw_scenes(SceneConfig(), "train", range(2))).rgb.shape
    torch.Size([2, 3, 336, 336])
    """
    config, device, scenes = graph.config, graph.device, len(graph)
    height, width, short = config.height, config.width, config.shorter_side
    window = 2 * ceil(config.radii[-1] * 1.08 * short) + 2
    order = graph.order()

    def far_to_near(values: Tensor) -> Tensor:
        return values.gather(1, order)

    radius, exists = far_to_near(graph.radius), far_to_near(graph.exists)
    kind = graph.kind[order]
    tile = far_to_near(graph.attributes[..., SHAPE]) * len(words.TEXTURES)
    tile = torch.where(kind == DECOY, len(words.SHAPES) * len(words.TEXTURES), tile)
    tile = tile + far_to_near(graph.attributes[..., TEXTURE])
    offsets = torch.arange(window, device=device) - window // 2

    def axis(centre: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return the pixels of the window along one axis, and the texel of each (-1: none)."""
        pixel = (far_to_near(centre) * size // UNIT)[..., None] + offsets  # (scenes, slots, window)
        reach = (2 * radius * short)[..., None]
        offset = (2 * pixel + 1) * UNIT - 2 * size * far_to_near(centre)[..., None]
        texel = torch.div((offset + reach) * _TILE, 2 * reach, rounding_mode="floor")
        hit = (texel >= 0) & (texel < _TILE) & (pixel >= 0) & (pixel < size) & exists[..., None]
        return pixel, torch.where(hit, texel, -1)

    column, u = axis(graph.x, width)
    row, v = axis(graph.y, height)
    atlas = _atlas(device).flatten()
    bin_ = height * width  # a spare last pixel takes what falls outside
    painted = torch.zeros(scenes, bin_ + 1, dtype=torch.uint8, device=device)
    instances = torch.zeros_like(painted)
    for step in range(order.shape[1]):
        inside = (u[:, step, None, :] >= 0) & (v[:, step, :, None] >= 0)
        texel = (tile[:, step, None, None] * _TILE + v[:, step, :, None]) * _TILE + u[:, step, None]
        tone = atlas[texel.clamp_(min=0)]
        pixel = row[:, step, :, None] * width + column[:, step, None, :]
        pixel = torch.where(inside & (tone != _OUTSIDE), pixel, bin_)
        slot = order[:, step, None, None]
        # Camouflaged things are not in RGB, flat ones not in the instance map.
        visible = (kind[:, step] != CAMOUFLAGED)[:, None, None]
        code = (1 + 2 * slot).to(torch.uint8) + (tone == _DARK).to(torch.uint8)
        painted.scatter_(1, torch.where(visible, pixel, bin_).flatten(1), code.flatten(1))
        solid = graph.solid.gather(1, order[:, step : step + 1])[:, :, None]
        identity = (1 + slot).to(torch.uint8).expand_as(pixel)
        instances.scatter_(1, torch.where(solid, pixel, bin_).flatten(1), identity.flatten(1))
    return Rendered(
        graph,
        _shade(graph, painted[:, :bin_].view(scenes, height, width)),
        instances[:, :bin_].reshape(scenes, height, width),
    )


def render_all(graph: SceneGraph) -> Rendered:
    """Paint any number of scenes, in parts."""
    parts = [render(graph[i : i + _TOGETHER]) for i in range(0, len(graph), _TOGETHER)]
    rgb, instances = ([getattr(part, name) for part in parts] for name in ("rgb", "instances"))
    return Rendered(graph, torch.cat(rgb), torch.cat(instances))


def _shade(
    graph: SceneGraph, painted: UInt8[Tensor, "scenes height width"]
) -> UInt8[Tensor, "scenes 3 height width"]:
    """Return the colours of codes (0: room; 1 + 2 slot: bright; 2 + 2 slot: dark), with noise."""
    device, (scenes, height, width) = graph.device, painted.shape
    bright = _colours(device)[graph.attributes[..., COLOUR]]  # (scenes, slots, 3)
    dark = bright * _SHADE // 100
    is_decoy = (graph.kind == DECOY)[:, None]
    pair = torch.stack([torch.where(is_decoy, 250, bright), torch.where(is_decoy, 6, dark)], 2)
    table = torch.cat([torch.zeros_like(pair[:, :1, 0]), pair.flatten(1, 2)], 1).to(torch.int16)

    rows = _rows(graph)
    walls, floors = _rooms(device)
    is_floor = (rows >= graph.horizon[:, None])[..., None]
    room = torch.where(is_floor, floors[graph.floor][:, None], walls[graph.wall][:, None])
    light = torch.where(is_floor[..., 0], rows - UNIT, -rows) // 160  # brighter to the camera
    room = (room + 10 + light[..., None]).to(torch.int16)  # (scenes, height, 3)

    size = draws.integers(graph.keys, "noise offset", 2, _NOISE)
    y = (torch.arange(height, device=device) + size[:, :1]) % _NOISE
    x = (torch.arange(width, device=device) + size[:, 1:]) % _NOISE
    noise = _noise(device).to(torch.int16)[y[:, :, None] * _NOISE + x[:, None, :]]

    code = painted.flatten(1).long()
    is_room = painted == 0
    channels = []
    for channel in range(3):
        thing = table[..., channel].gather(1, code).view(scenes, height, width)
        base = torch.where(is_room, room[:, :, None, channel], thing)
        channels.append((base + noise).clamp_(0, 255).to(torch.uint8))
    return torch.stack(channels, 1)
