"""Whether the patches that a text keeps are those of the thing that it names, on NYUv2.

The text is "a CLASS". A patch belongs to a class that fills more than half of it; frames with at
least three such patches count. Frames are cut to their middle square.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.images import open_image
from eligo.patches.model.functional import unit
from eligo.patches.model.retrieval_model import RetrievalModel

CLASSES = {
    3: "cabinet", 4: "bed", 5: "chair", 6: "sofa", 7: "table", 8: "door", 9: "window",
    10: "bookshelf", 11: "picture", 16: "curtain", 18: "pillow", 19: "mirror", 23: "books",
    24: "refrigerator", 25: "television", 31: "person", 33: "toilet", 34: "sink", 35: "lamp",
    36: "bathtub", 37: "bag",
}  # fmt: skip
"""Of NYU40."""
_FEWEST = 3  # patches
_BATCH = 32


@torch.no_grad()
def pointing(
    model: RetrievalModel, folder: Path, split: str = "test", ratio: float = 0.25
) -> dict[str, Any]:
    """Return shares over frames and classes, and the values of each pair with its frame.

    `kept`: share of the thing's patches among the kept `ratio` of all; `hit`: whether the patch
    that is most similar to the class's last word is on the thing; `chance`: share of the thing.
    """
    listed = folder / f"{split}.txt"
    if not listed.is_file():
        raise InputError(f"{listed}: there is no such list of frames; expected NYUv2's")
    frames = listed.read_text(encoding="utf-8").split()
    side, grid = model.image_encoder.image_size, model.grid_hw
    features = model.encode_texts([f"a {name}" for name in CLASSES.values()])
    texts = model.text_side(features)
    net = model.selecting_net()
    rows: list[tuple[str, int, float, float, float]] = []
    for first in range(0, len(frames), _BATCH):
        names = frames[first : first + _BATCH]
        images = model.image_side([_square(folder / "rgb", name, side) for name in names])
        with model.keeping(ratio):
            decision = net.match(images, texts, decisions=True).sparse
        assert decision is not None
        kept = decision.live > 0.5
        labels = torch.stack([_labels(folder / "label" / f"{name}.png", side) for name in names])
        for place, number in enumerate(CLASSES):
            share = _share(labels == number, grid).to(kept.device)
            inside = share > 0.5
            noun = unit(features.words[place][features.mask[place]][-1])
            best = (unit(images.patches) @ noun).argmax(1)
            for row, name in enumerate(names):
                thing = inside[row]
                if thing.sum() < _FEWEST:
                    continue
                recall = (kept[row, place] & thing).sum() / thing.sum()
                hit, chance = float(thing[best[row]]), float(thing.float().mean())
                rows.append((name, number, float(recall), hit, chance))
    if not rows:
        raise InputError(f"{folder}: no frame of {split} shows one of the classes")
    means = np.mean([row[2:] for row in rows], 0)
    return dict(zip(("kept", "hit", "chance"), map(float, means), strict=True)) | {
        "pairs": len(rows), "frames": [row[0] for row in rows],
        "values": {"kept": [row[2] for row in rows], "hit": [row[3] for row in rows]},
    }  # fmt: skip


def _square(folder: Path, name: str, side: int) -> Image.Image:
    found: Sequence[Path] = sorted(folder.glob(f"{name}.*"))
    if not found:
        raise InputError(f"{folder}: there is no image {name}")
    return _middle(open_image(found[0])).resize((side, side), Image.Resampling.BICUBIC)


def _labels(path: Path, side: int) -> Tensor:
    with Image.open(path) as image:
        cut = _middle(image).resize((side, side), Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(cut))


def _middle(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _share(inside: Tensor, grid: tuple[int, int]) -> Float[Tensor, "frames patches"]:
    return F.adaptive_avg_pool2d(inside.float().unsqueeze(1), grid).flatten(1)
