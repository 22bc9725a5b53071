"""Time to read 12-megapixel JPEGs for an index, by the number of processes.

    python -m benchmarks.patches.decoding
    python -m benchmarks.patches.decoding --photos 4 --megapixels 1 --rounds 1

Compares, for generated photos: decoding them whole, as `PIL.Image.open` does; reading them twice,
as `eligo patches index` did before 0.2 (all images were checked first, in threads, then decoded at
a fraction of their size); and what it does now: one pass that hashes, decodes at a fraction and
resizes, in 0, 1, 2, ... worker processes. Runs alternate. No model runs.

Writes results/decoding.json.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
import tyro
from PIL import Image

from benchmarks.timing import timed_in_turns, write_results
from eligo.images import open_image, upright_size
from eligo.patches.index import ImageFiles
from eligo.patches.model.encoders import resize
from eligo.train.check import DataCheck

RESULTS = Path(__file__).parent / "results" / "decoding.json"
SIDE, BATCH = 224, 32


def make_photos(folder: Path, count: int, megapixels: float) -> None:
    """Write JPEGs with coarse and fine structure, of 0.2 to 0.3 bytes per pixel."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    width = height * 4 // 3
    for number in range(count):
        random = np.random.default_rng(number)
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
        noise = random.integers(-6, 7, (height, width, 1), dtype=np.int16)
        picture = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number:04d}.jpg", quality=90)


def whole(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        with Image.open(path) as picture:
            resize(picture.convert("RGB"), SIDE)


def twice(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    DataCheck().each("images", paths, upright_size)
    for path in paths:
        resize(open_image(path, SIDE), SIDE)


def once(folder: Path, num_workers: int) -> None:
    files = replace(ImageFiles.under(folder), side=SIDE)
    prepare = partial(_prepared, SIDE)
    for _ in files.batches(range(len(files.ids)), BATCH // 4, prepare, num_workers):
        pass


def _prepared(side: int, picture: Image.Image) -> np.ndarray:
    return resize(picture, side).numpy()


def main(
    photos: Annotated[int, tyro.conf.arg(help="Photos to read.")] = 64,
    megapixels: Annotated[float, tyro.conf.arg(help="Size of each.")] = 12.0,
    rounds: Annotated[int, tyro.conf.arg(help="Alternating runs.")] = 3,
    out: Annotated[Path, tyro.conf.arg(help="The file of results.")] = RESULTS,
) -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    workers = sorted({0, 1, 2, 4, cores} & set(range(cores + 1)))
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_photos(folder, photos, megapixels)
        size = sum(path.stat().st_size for path in folder.iterdir()) / photos
        runs = {"whole": partial(whole, folder), "twice": partial(twice, folder)}
        runs |= {f"once, {n} workers": partial(once, folder, n) for n in workers}
        seconds = timed_in_turns(runs, rounds)
    each = {name: 1000 * median(took) / photos for name, took in seconds.items()}
    results = {
        "photos": photos, "megapixels": megapixels, "mb_each": size / 1e6, "cores": cores,
        "ms_each": each,
    }  # fmt: skip
    print(results)
    write_results(out, results)


if __name__ == "__main__":
    tyro.cli(main)
