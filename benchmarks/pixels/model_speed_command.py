"""`eligo pixels bench`: how fast a model segments on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count, Index, Side
from eligo.errors import InputError


def run(
    size: Literal["S", "B", "L", "small"] | None = None,
    model: Path | None = None,
    height: Side = 480,
    width: Side = 640,
    batch_size: Count = 1,
    num_words: Index = 6,
    rounds: Count = 5,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Time a model with and without depth and words, and count its multiply-adds.

    The committed comparison with a plainly written DFormerv2 is benchmarks/pixels/speed.py.

    Args:
        size: A network of this size with random weights, by default small; speed does not depend on
            them.
        model: Instead, the folder of a model or run.
        height: Of the images, in pixels.
        width: Of the images, in pixels.
        batch_size: Images at a time.
        num_words: Words of each image.
        rounds: Interleaved measurements of every way to call it.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if size is not None and model is not None:
        raise InputError(f"got --size {size} and --model {model}, expected one of them")
    from benchmarks.pixels.model_speed import bench_model
    from eligo.pixels import SIZES, PixelsConfig, PixelsModel
    from eligo.pixels.inference.segmenter import Segmenter
    from eligo.pretrained.devices import resolve_device

    where = resolve_device(device)
    if model is not None:
        network = Segmenter.from_pretrained(model, device=where).model
    else:
        network = PixelsModel(PixelsConfig().replace(SIZES[size or "small"])).to(where).eval()
    found = bench_model(
        network, height=height, width=width, batch=batch_size, words=num_words, rounds=rounds
    )
    print_result([asdict(speed) for speed in found], json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
