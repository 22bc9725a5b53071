"""How much of the same rooms the shipped segmenter gets right, painted in several sizes.

    python -m benchmarks.pixels.sizes

It learned from rooms of 96 x 128 pixels, and knows things by their size. Each room is painted anew,
and segmented as `eligo pixels predict` does it, with its true tags and depth, as it is and with
`--size 96 128`. What counts are the pixels of things (without wall, floor and clutter).

Writes benchmarks/pixels/results/sizes.json.
"""

import json
from pathlib import Path
from typing import Any

import torch
import tyro

from eligo.config import load_config
from eligo.io.files import write_text
from eligo.pixels import PixelsTrainConfig, Segmenter
from eligo.pixels.data.inputs import normalise_metres
from eligo.pixels.inference.predict import segment
from eligo.report.provenance import provenance
from eligo.scenes import words
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import render_all
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.tags import class_tags

RESULTS = Path(__file__).parent / "results" / "sizes.json"
SIZES = ((96, 128), (192, 256), (480, 640))
_NO_THINGS = [words.LABELS.index(name) for name in ("wall", "floor", "clutter")]


def main(rooms: int = 50) -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    segmenter = Segmenter.from_pretrained("pixels")
    trained = segmenter.config.image_size
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        for look in (None, trained) if size != trained else (None,):
            right = share_of_things(segmenter, rooms, size, look)
            rows.append({"painted": size, "looked at": look or size, "right": right})
            print(rows[-1], flush=True)
    told = provenance("python -m benchmarks.pixels.sizes", "cpu")
    write_text(RESULTS, json.dumps(told | {"rooms": rooms, "rows": rows}, indent=1) + "\n")


@torch.no_grad()
def share_of_things(
    segmenter: Segmenter, rooms: int, size: tuple[int, int], look: tuple[int, int] | None
) -> float:
    """Of the things' pixels of all rooms together, those with their own class."""
    world = load_config(PixelsTrainConfig, "pixels/shipped").data.scenes  # pyright: ignore[reportAttributeAccessIssue]
    world = world.replace({"height": size[0], "width": size[1]})
    right = seen = 0
    for number in range(rooms):  # one at a time: large ones take memory
        shown = render_all(
            draw_scenes(world, "test", range(number, number + 1), torch.device("cpu"))
        )
        ids = class_tags(shown.graph).words[0, :, 0]
        tags = [VOCABULARY[word] for word in ids.tolist() if word >= 0]
        metres = normalise_metres(shown.depth)
        depth = (metres, torch.ones_like(metres, dtype=torch.bool))
        found = segment(segmenter, shown.rgb[0], depth, tags=tags, size=look).labels.long()
        labels = shown.labels[0].long()
        things = ~torch.isin(labels, torch.tensor(_NO_THINGS))
        right += int((found == labels)[things].sum())
        seen += int(things.sum())
    return right / seen


if __name__ == "__main__":
    tyro.cli(main)
