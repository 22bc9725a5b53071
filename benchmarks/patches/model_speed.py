"""How fast a model encodes, matches and searches on this machine.

Kernels are measured in turn against the plain loop (`reference`), so that a busy machine slows all
of them; a figure is the median of its rounds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles

import torch

from eligo.errors import InputError
from eligo.nn import full_precision
from eligo.patches import kernels
from eligo.patches.index.build import matching_net
from eligo.patches.index.search import Searcher
from eligo.patches.index.sources import Loaded, ScenePictures, scene_captions
from eligo.patches.model.retrieval_model import RetrievalModel

_CAPTIONS = 64  # different ones; more are repeated


@dataclass(frozen=True)
class KernelSpeed:
    """All pairs of a batch by one kernel."""

    kernel: str
    milliseconds: float
    pairs_per_second: float
    speedup: float
    """Over `reference`, the loop."""
    largest_difference: float
    """Of its scores from those of the loop."""


@dataclass(frozen=True)
class SearchSpeed:
    """One query after the other in an index."""

    entries: int
    rerank: int
    stage1_ms: float
    median_ms: float
    p90_ms: float


@torch.no_grad()
def bench_kernels(
    model: RetrievalModel, images: int, texts: int, rounds: int = 5
) -> tuple[dict[str, float], list[KernelSpeed]]:
    """Milliseconds to encode an image and a text, and the speed of every kernel that runs here."""
    if images < 1 or texts < 1 or rounds < 1:
        raise InputError(f"got {images} images, {texts} texts and {rounds} rounds, expected some")
    net = matching_net(model)
    scenes = ScenePictures.first(images, model.image_encoder.image_size, dense=model.uses_dense)
    loaded = [item for item in scenes.load(range(images)) if isinstance(item, Loaded)]
    pictures = [item.value for item in loaded]
    dense = [item.dense for item in loaded if item.dense is not None]
    captions = scene_captions(min(texts, _CAPTIONS))
    captions = [captions[place % len(captions)] for place in range(texts)]
    device = model.device
    encode = {
        "image": _milliseconds(device, lambda: model.encode_images(pictures)) / images,
        "text": _milliseconds(device, lambda: model.encode_texts(captions)) / texts,
    }
    sides = model.image_side(pictures, dense or None), model.text_side(captions)
    names: list[kernels.KernelName] = ["reference", "torch"]
    if device.type == "cuda":
        names.append("triton")
    with full_precision():
        runs = {
            name: partial(kernels.match, name, net.parts(), *sides, choices=False) for name in names
        }
        scores = {name: run().scores for name, run in runs.items()}  # warm
        taken: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name, run in runs.items():
                taken[name].append(_milliseconds(device, run))
    usual = {name: median(values) for name, values in taken.items()}
    return encode, [
        KernelSpeed(
            kernel=name,
            milliseconds=usual[name],
            pairs_per_second=images * texts / usual[name] * 1000,
            speedup=usual["reference"] / usual[name],
            largest_difference=float((scores[name] - scores["reference"]).abs().max()),
        )
        for name in names
    ]


@torch.no_grad()
def bench_search(searcher: Searcher, rerank: int, queries: int = 20) -> SearchSpeed:
    """Latency of a two-stage search, encoding not counted; queries are captions or scenes."""
    model = searcher.model
    if searcher.index.manifest.kind == "images":
        sides = [model.text_side([text]) for text in scene_captions(queries)]
    else:
        if model.uses_dense:
            raise InputError("a text index is measured with a model without dense captions")
        scenes = ScenePictures.first(queries, model.image_encoder.image_size)
        loaded = scenes.load(range(queries))
        sides = [model.image_side([item.value]) for item in loaded if isinstance(item, Loaded)]
    k = min(10, rerank)
    searcher.search(sides[0], k=k, rerank=rerank)  # warm
    first, whole = [], []
    for side in sides:
        first.append(_milliseconds(model.device, partial(searcher.candidates, side, rerank)))
        whole.append(
            _milliseconds(model.device, partial(searcher.search, side, k=k, rerank=rerank))
        )
    p90 = quantiles(whole, n=10, method="inclusive")[-1] if len(whole) > 1 else whole[0]
    return SearchSpeed(len(searcher.index), rerank, median(first), median(whole), p90)


def _milliseconds(device: torch.device, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1000 * (time.perf_counter() - began)
