"""Names of classes, in the order of their numbers."""

from pathlib import Path

from eligo.errors import InputError
from eligo.io.reading import numbered_lines

NYU_40 = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf",
    "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror",
    "floor mat", "clothes", "ceiling", "books", "refridgerator", "television", "paper", "towel",
    "shower curtain", "box", "whiteboard", "person", "night stand", "toilet", "sink", "lamp",
    "bathtub", "bag", "otherstructure", "otherfurniture", "otherprop",
)  # fmt: skip
"""Classes of NYUDepthv2, in its spelling."""
SUN_37 = NYU_40[:37]
"""Classes of SUN RGB-D."""
_MAX_CLASSES = 254  # 255 is ignored


def read_classes(path: Path) -> tuple[str, ...]:
    """Read class names, one per line."""
    names = tuple(line.strip() for _, line in numbered_lines(path))
    if not 2 <= len(names) <= _MAX_CLASSES or len(set(names)) != len(names):
        raise InputError(
            f"{path}: got {len(names)} names, {len(set(names))} different, expected 2 to "
            f"{_MAX_CLASSES} different ones, one per line"
        )
    return names
