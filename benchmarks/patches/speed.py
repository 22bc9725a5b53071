"""Speed of a model on this machine: `python -m benchmarks.patches.speed`.

Kernels alternate with the plain loop (`reference`); times are medians of the rounds.
The committed comparison with code outside eligo is `benchmarks/patches/kernels.py`.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import torch

from benchmarks.timing import timed, timed_in_turns
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.cli.patches.flags import open_model
from eligo.errors import InputError
from eligo.nn import full_precision
from eligo.patches import kernels
from eligo.patches.index import ScenePictures, Searcher
from eligo.patches.index.sources import Loaded, scene_captions
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.seps import CrossSparseAggrNet

_CAPTIONS = 64  # distinct captions; repeated if more are needed


@dataclass(frozen=True)
class KernelSpeed:
    """All pairs of a batch by one kernel, compared with `reference`."""

    kernel: str
    milliseconds: float
    pairs_per_second: float
    speedup: float
    largest_difference: float


@dataclass(frozen=True)
class SearchSpeed:
    """Times of single queries in an index."""

    entries: int
    rerank: int
    stage1_ms: float
    median_ms: float
    p90_ms: float


@torch.no_grad()
def bench_kernels(
    model: RetrievalModel, images: int, texts: int, rounds: int = 5
) -> tuple[dict[str, float], list[KernelSpeed]]:
    """Time encoding (milliseconds per image and text) and every kernel that runs here."""
    net, device = model.selecting_net(), model.device
    if not isinstance(net, CrossSparseAggrNet):
        raise InputError(
            f"--model: of kind {model.config.match.kind}, which has one implementation"
        )
    scenes = ScenePictures.first(images, model.image_encoder.image_size, dense=model.uses_dense)
    loaded = [item for item in scenes.load(range(images)) if isinstance(item, Loaded)]
    pictures = [item.value for item in loaded]
    dense = [item.dense for item in loaded if item.dense is not None]
    captions = scene_captions(min(texts, _CAPTIONS))
    captions = [captions[place % len(captions)] for place in range(texts)]
    encode = {
        "image": 1000 * timed(partial(model.encode_images, pictures), device)[0] / images,
        "text": 1000 * timed(partial(model.encode_texts, captions), device)[0] / texts,
    }
    inputs = model.image_side(pictures, dense or None), model.text_side(captions)
    names: list[kernels.KernelName] = ["reference", "torch"]
    if device.type == "cuda":
        names.append("triton")
    with full_precision():
        runs = {
            name: partial(kernels.match, name, net.parts(), *inputs, decisions=False)
            for name in names
        }
        scores = {name: run().scores for name, run in runs.items()}  # warm-up
        seconds = timed_in_turns(runs, rounds, device)
    medians = {name: 1000 * median(values) for name, values in seconds.items()}
    return encode, [
        KernelSpeed(
            kernel=name,
            milliseconds=medians[name],
            pairs_per_second=images * texts / medians[name] * 1000,
            speedup=medians["reference"] / medians[name],
            largest_difference=float((scores[name] - scores["reference"]).abs().max()),
        )
        for name in names
    ]


@torch.no_grad()
def bench_search(searcher: Searcher, rerank: int, queries: int = 20) -> SearchSpeed:
    """Time a two-stage search without encoding; queries are captions or scenes."""
    model = searcher.model
    if searcher.index.manifest.kind == "images":
        inputs = [model.text_side([text]) for text in scene_captions(queries)]
    else:
        if model.uses_dense:
            raise InputError("a text index is measured with a model without dense captions")
        scenes = ScenePictures.first(queries, model.image_encoder.image_size)
        loaded = scenes.load(range(queries))
        inputs = [model.image_side([item.value]) for item in loaded if isinstance(item, Loaded)]
    k = min(10, rerank)
    searcher.search(inputs[0], k=k, rerank=rerank)  # warm-up
    first, whole = [], []
    for query in inputs:
        stages = {
            "first": partial(searcher.candidates, query, rerank),
            "whole": partial(searcher.search, query, k=k, rerank=rerank),
        }
        seconds = timed_in_turns(stages, 1, model.device)
        first.append(1000 * seconds["first"][0])
        whole.append(1000 * seconds["whole"][0])
    p90 = quantiles(whole, n=10, method="inclusive")[-1] if len(whole) > 1 else whole[0]
    return SearchSpeed(len(searcher.index), rerank, median(first), median(whole), p90)


def run(
    num_images: Count = 32,
    num_texts: Count = 32,
    rounds: Count = 5,
    index: Path | None = None,
    rerank: Count = 128,
    num_queries: Count = 20,
    model: str | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Time encoding, every kernel against the plain loop, and the search of an index.

    Args:
        num_images: Generated scenes to match.
        num_texts: Captions to match them with.
        rounds: Measurements of every kernel.
        index: Also search this index.
        rerank: Entries scored exactly in a search.
        num_queries: Number of searches.
        model: Folder of a model or run; by default the shipped model.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    opened = open_model(model, device)
    encode, speeds = bench_kernels(opened, num_images, num_texts, rounds)
    result = {"encoding, ms each": encode, "matching": [asdict(speed) for speed in speeds]}
    if index is not None:
        result["searching"] = asdict(bench_search(Searcher(opened, index), rerank, num_queries))
    print_result(result, json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
