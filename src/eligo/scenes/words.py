"""The vocabulary of the scenes.

An object has four attributes, always in this order: size, colour, texture, shape. Sentences are
made in `phrases`, `questions` and `captions`.
"""

ATTRIBUTES = ("size", "colour", "texture", "shape")
SIZE, COLOUR, TEXTURE, SHAPE = range(4)

SIZES = ("small", "medium", "large")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")
TEXTURES = ("plain", "striped", "dotted", "checkered")
SHAPES = ("ball", "box", "cone", "ring", "star", "cross", "gem", "moon")
VALUES = (SIZES, COLOURS, TEXTURES, SHAPES)
"""Names of the values of each attribute."""

PLURALS = ("balls", "boxes", "cones", "rings", "stars", "crosses", "gems", "moons")

COLOUR_RGB = (
    (214, 38, 38),
    (240, 132, 22),
    (240, 218, 48),
    (44, 158, 60),
    (64, 206, 214),
    (40, 72, 212),
    (150, 52, 178),
    (246, 246, 246),
)
WALL_RGB = ((126, 118, 110), (112, 122, 128), (140, 130, 116), (118, 110, 124), (132, 136, 128))
FLOOR_RGB = ((104, 84, 66), (90, 94, 98), (120, 102, 80), (98, 84, 96), (84, 96, 84))

# Twins: the second name of a shape. Twin classes look identical; only the image's tags tell which
# name applies.
TWINS = {"ring": "hoop", "gem": "tile", "moon": "horn"}

LABELS = ("wall", "floor", *SHAPES, "clutter", *TWINS.values())
"""Classes of the label map, in order. Flat painted decoys belong to the wall or floor behind."""

HELD_OUT = tuple((colour, (3 * colour + 1) % len(SHAPES)) for colour in range(len(COLOURS)))
"""(colour, shape) pairs that occur in the test split only: one shape of each colour."""

RELATIONS = ("left of", "right of", "above", "below")

# Nonce words: a lexicon gives them a meaning, for one prompt.
NONCE = tuple(
    onset + nucleus + coda
    for nucleus, coda in (("a", "x"), ("i", "b"), ("o", "f"), ("u", "m"), ("e", "k"), ("a", "p"))
    for onset in ("bl", "d", "f", "gl", "k", "m", "n", "pr", "t", "v", "w", "z")
)


def name(attribute: int, value: int) -> str:
    """Return the name of an attribute value, e.g. `name(COLOUR, 0) == "red"`."""
    return VALUES[attribute][value]
