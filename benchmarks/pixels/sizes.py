"""Accuracy of the shipped segmenter on the same rooms, rendered in several sizes.

    python -m benchmarks.pixels.sizes

It was trained on rooms of 96 x 128 pixels and is sensitive to the size of objects. Each room is
segmented with its true tags and depth, in its own size and scaled to 96 x 128 (`--size 96 128`).
Only pixels of objects count (not wall, floor and clutter).

Writes benchmarks/pixels/results/sizes.json.
"""

import json
from pathlib import Path
from typing import Any

import torch

from eligo.cli import run_script
from eligo.cli.flags import Count
from eligo.config import load_config
from eligo.io.files import write_text
from eligo.pixels import PixelsTrainConfig, Segmenter
from eligo.pixels.data.pictures import normalise_metres
from eligo.pixels.inference.predict import segment
from eligo.report.provenance import provenance
from eligo.scenes import words
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import render_all
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.tags import class_tags

RESULTS = Path(__file__).parent / "results" / "sizes.json"
SIZES = ((96, 128), (192, 256), (480, 640))
_BACKGROUND = [words.LABELS.index(name) for name in ("wall", "floor", "clutter")]


def run(rooms: Count = 50) -> None:
    """Measure all sizes and write the result.

    Args:
        rooms: Number of test rooms.
    """
    torch.set_num_threads(1)
    segmenter = Segmenter.from_pretrained("pixels")
    trained = segmenter.config.image_size
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        for scaled in (None, trained) if size != trained else (None,):
            right = object_accuracy(segmenter, rooms, size, scaled)
            rows.append({"rendered": size, "scaled to": scaled or size, "right": right})
            print(rows[-1], flush=True)
    head = provenance("cpu")
    write_text(RESULTS, json.dumps(head | {"rooms": rooms, "rows": rows}, indent=1) + "\n")


@torch.no_grad()
def object_accuracy(
    segmenter: Segmenter, rooms: int, size: tuple[int, int], scaled: tuple[int, int] | None
) -> float:
    """Return the share of object pixels of all rooms with the right class."""
    world = load_config(PixelsTrainConfig, "pixels/shipped").data.scenes  # pyright: ignore[reportAttributeAccessIssue]
    world = world.replace({"height": size[0], "width": size[1]})
    right = total = 0
    for number in range(rooms):  # one at a time: large ones take memory
        graph = draw_scenes(world, "test", range(number, number + 1), torch.device("cpu"))
        room = render_all(graph)
        ids = class_tags(room.graph).words[0, :, 0]
        tags = [VOCABULARY[word] for word in ids.tolist() if word >= 0]
        metres = normalise_metres(room.depth)
        depth = (metres, torch.ones_like(metres, dtype=torch.bool))
        predicted = segment(segmenter, room.rgb[0], depth, tags=tags, size=scaled).labels.long()
        labels = room.labels[0].long()
        objects = ~torch.isin(labels, torch.tensor(_BACKGROUND))
        right += int((predicted == labels)[objects].sum())
        total += int(objects.sum())
    return right / total


if __name__ == "__main__":
    raise SystemExit(run_script(run))
