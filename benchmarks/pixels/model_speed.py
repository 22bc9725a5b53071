"""How fast a model segments on this machine, and what depth and words add to it.

The committed comparison with a plainly written DFormerv2 is `benchmarks/pixels/speed.py`.
"""

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch


@dataclass(frozen=True)
class Speed:
    """One way to call the model."""

    inputs: str
    ms_per_image: float
    over_rgb: float
    """Time over that of RGB alone, measured in the same rounds."""
    gmacs: float
    """Multiply-adds of one image."""


@torch.no_grad()
def bench_model(
    model: PixelsModel, *, height: int, width: int, batch: int, words: int, rounds: int
) -> list[Speed]:
    """RGB alone, with depth, with words, with both; interleaved rounds, medians."""
    device = next(model.parameters()).device
    rgb, depth = (torch.randn(batch, n, height, width, device=device) for n in (3, 1))
    calls: dict[str, tuple[Tensor | None, TextBatch | None]] = {"rgb": (None, None)}
    calls["rgb, depth"] = (depth, None)
    if model.guided and words:
        vectors = torch.randn(batch, words, model.config.text_dim, device=device)
        text = TextBatch(vectors, torch.ones(batch, words, dtype=torch.bool, device=device))
        calls |= {"rgb, words": (None, text), "rgb, depth, words": (depth, text)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, (z, said) in calls.items():
            took = _timed(model, rgb, z, said)
            if number:  # the first round warms up
                times[name].append(took)
    basis = median(times["rgb"])
    return [
        Speed(
            name,
            1000 * median(times[name]) / batch,
            median(times[name]) / basis,
            _count(model, rgb[:1], z, said),
        )
        for name, (z, said) in calls.items()
    ]


def _timed(model: PixelsModel, rgb: Tensor, depth: Tensor | None, text: TextBatch | None) -> float:
    _wait(rgb)
    began = time.perf_counter()
    model(rgb, depth, None, text, maps=False)
    _wait(rgb)
    return time.perf_counter() - began


def _wait(on: Tensor) -> None:
    if on.is_cuda:
        torch.cuda.synchronize()


def _count(model: PixelsModel, rgb: Tensor, depth: Tensor | None, text: TextBatch | None) -> float:
    if text is not None:
        text = TextBatch(text.embeddings[:1], text.mask[:1])
    with FlopCounterMode(display=False) as counter:  # kernels stay away from one
        model(rgb, None if depth is None else depth[:1], None, text, maps=False)
    return counter.get_total_flops() / 2 / 1e9
