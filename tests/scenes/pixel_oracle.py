"""A second renderer in plain NumPy: analytic shapes at pixel centres, the nearest wins.

Pixels within a texel of an outline are UNSURE: there, rounding decides.
"""

from math import cos, pi, sin

import numpy as np
from scene_oracle import CAMOUFLAGED, DECOY, UNIT, Thing

TEXEL = 2 / 256
UNSURE = -1


def _in_star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Even-odd rule over the ten corners."""
    corners = [
        (r * sin(k * pi / 5), -r * cos(k * pi / 5)) for k in range(10) for r in [(1, 0.45)[k % 2]]
    ]
    inside = np.zeros_like(u, dtype=bool)
    for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        crosses = (y1 > v) != (y2 > v)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside ^= crosses & (u < (x2 - x1) * (v - y1) / (y2 - y1) + x1)
    return inside


def _inside(thing: Thing, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    radius = np.hypot(u, v)
    square = (abs(u) < 1) & (abs(v) < 1)
    if thing.kind == DECOY:
        return (abs(u) <= 0.96) & (abs(v) <= 0.72)
    if thing.shape == "ball":
        return radius <= 1
    if thing.shape == "box":
        return (abs(u) <= 0.86) & (abs(v) <= 0.86)
    if thing.shape == "cone":
        return square & (abs(u) <= 0.55 * (v + 1)) & (v <= 0.8)
    if thing.shape == "ring":
        return (radius <= 1) & (radius**2 >= 0.27)
    if thing.shape == "star":
        return _in_star(u, v)
    if thing.shape == "cross":
        return square & ((abs(u) <= 0.32) | (abs(v) <= 0.32))
    if thing.shape == "gem":
        return 1.3 * abs(u) + abs(v) <= 1
    return (radius <= 1) & ((u - 0.55) ** 2 + v**2 >= 0.52)  # moon


def cover(thing: Thing, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks of where a thing surely is, and where it may be. (height, width)"""
    radius = thing.radius * min(height, width) / UNIT
    x, y = thing.x * width / UNIT, thing.y * height / UNIT
    top, left = max(0, int(y - radius) - 2), max(0, int(x - radius) - 2)
    rows = np.arange(top, min(height, int(y + radius) + 3))
    columns = np.arange(left, min(width, int(x + radius) + 3))
    v, u = np.meshgrid((rows + 0.5 - y) / radius, (columns + 0.5 - x) / radius, indexing="ij")
    steps = np.linspace(-1.5, 1.5, 7) * TEXEL  # fine enough to meet the tip of a star
    du, dv = (d.reshape(-1, 1, 1) for d in np.meshgrid(steps, steps))
    votes = _inside(thing, u + du, v + dv)  # (votes, rows, columns)
    surely, maybe = (np.zeros((height, width), dtype=bool) for _ in range(2))
    here = np.ix_(rows, columns)
    surely[here], maybe[here] = votes.all(0), votes.any(0)
    return surely, maybe


def owners(scene: list[Thing], height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Owner of each pixel in RGB and in the instance map: 0 (room), slot + 1, or UNSURE."""
    maps = []
    covers = {t.slot: cover(t, height, width) for t in scene}
    for picture in (True, False):
        shown = [t for t in scene if (t.kind != CAMOUFLAGED if picture else t.solid)]
        # Far to near: flat things, then camouflaged ones, then visible ones by depth.
        shown.sort(key=lambda t: (t.solid, t.kind != CAMOUFLAGED, -t.depth * t.solid, -t.slot))
        owner = np.zeros((height, width), dtype=int)
        for thing in shown:
            surely, maybe = covers[thing.slot]
            owner[maybe] = UNSURE
            owner[surely] = thing.slot + 1
        maps.append(owner)
    return maps[0], maps[1]
