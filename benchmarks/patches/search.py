"""Recall and speed of a two-stage search of generated scenes, with the shipped model.

    python -m benchmarks.patches.search
    python -m benchmarks.patches.search --scenes 500 --queries 20

Indexes the first scenes of the test split (including rendering), and measures stage 1 as `eligo
patches search --rerank auto` does: captions of the validation split are searched exhaustively, and
their top 10 are looked up in the order of stage 1, and in that of a simpler first stage: the cosine
of the mean word with the mean patch.

Then captions are searched one by one, with R = 128 and exhaustively, without encoding the query.
The very first search runs after the files were dropped from the page cache. One thread by default:
on a busy machine several threads mostly wait for each other.

Writes results/search.json.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from benchmarks.patches.speed import bench_search
from benchmarks.timing import timed, write_results
from eligo.patches.index import Calibration, ScenePictures, Searcher, build_index
from eligo.patches.index.search import RERANK, TOP, ranks_of_best
from eligo.patches.index.sources import scene_captions
from eligo.patches.index.stage1 import Stage1Query, guesses_of
from eligo.patches.model.inputs import Texts
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.report.intervals import paired_bootstrap

RESULTS = Path(__file__).parent / "results" / "search.json"
AT_ONCE = 16
SEARCHES, EXHAUSTIVE = 20, 3  # timed queries
BUDGETS = (10, 32, 64, 128, 256, 512)
SOURCE = "captions of validation scenes"

Guess = Callable[[Stage1Query], Tensor]
"""Scores of every entry in a first stage."""


def recalls(ranks: list[list[int]]) -> dict[str, Any]:
    """Return the recall with its 95 % interval over queries, and the smallest sufficient R."""
    calibration = Calibration(len(ranks), SOURCE, tuple(sorted(chain.from_iterable(ranks))))
    shares = {
        rerank: [sum(rank < rerank for rank in each) / len(each) for each in ranks]
        for rerank in BUDGETS
    }
    return {
        "recall_of_top10": {str(rerank): paired_bootstrap([row]) for rerank, row in shares.items()},
        "rerank_for_99.5_percent": calibration.smallest(),
    }


def first_search(model: RetrievalModel, folder: Path, query: Texts) -> float:
    """Return the seconds of a search of files that are not in the page cache."""
    for path in folder.glob("shard_*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    searcher = Searcher(model, folder)
    return timed(partial(searcher.search, query, k=min(TOP, len(searcher.index))))[0]


def measure_stage1(searcher: Searcher, captions: list[str]) -> dict[str, Any]:
    """Compare two first stages by the same exhaustive searches."""
    shards = searcher.index.shards
    means = torch.cat([shard.tensors["direction"].float() for shard in shards])
    stages: dict[str, Guess] = {
        "words_and_slots": lambda query: torch.cat([guesses_of(shard, query) for shard in shards]),
        "cosine_of_means": lambda query: means @ query.direction,
    }
    ranks: dict[str, list[list[int]]] = {name: [] for name in stages}
    start = perf_counter()
    for first in range(0, len(captions), AT_ONCE):
        side = searcher.model.text_side(captions[first : first + AT_ONCE])
        scores = searcher.scores(side, torch.arange(len(searcher.index)))
        for column, query in zip(scores.T, searcher.stage1_queries(side), strict=True):
            for name, guess in stages.items():
                ranks[name].append(ranks_of_best(guess(query), column))
    return {
        "queries": len(captions),
        "source": SOURCE,
        "seconds": perf_counter() - start,
        **{name: recalls(of_stage) for name, of_stage in ranks.items()},
    }


def measure(model: RetrievalModel, scenes: int, queries: int, folder: Path) -> dict[str, Any]:
    """Measure indexing, the first search, stage 1 and repeated searches."""
    source = ScenePictures.first(scenes, model.image_encoder.image_size, dense=model.uses_dense)
    seconds, built = timed(partial(build_index, lambda: model, source, folder))
    results: dict[str, Any] = {
        "scenes": scenes,
        "threads": torch.get_num_threads(),
        "index": {"seconds": seconds, "kib_per_entry": built.bytes_per_entry / 1024},
    }
    print(json.dumps(results))
    query = model.text_side(scene_captions(1))
    results["first_search_seconds"] = first_search(model, folder, query)
    print(f"first search: {results['first_search_seconds']:.2f} s")
    searcher = Searcher(model, folder)
    slots = sum(shard.tensors["folded"].nbytes for shard in searcher.index.shards)
    results["index"]["kib_of_slots"] = slots / built.entries / 1024

    results["stage1"] = measure_stage1(searcher, scene_captions(queries))
    print(json.dumps(results["stage1"]))
    results["search"] = []
    for rerank, count in ((min(RERANK, built.entries), SEARCHES), (built.entries, EXHAUSTIVE)):
        speed = bench_search(searcher, rerank, count)
        results["search"].append(
            {
                "rerank": rerank,
                "searches": count,
                "median_seconds": speed.median_ms / 1000,
                "p90_seconds": speed.p90_ms / 1000,
                "stage1_median_seconds": speed.stage1_ms / 1000,
            }
        )
        print(json.dumps(results["search"][-1]))
    return results


def main(
    scenes: Annotated[int, tyro.conf.arg(help="Scenes to index.")] = 10_000,
    queries: Annotated[int, tyro.conf.arg(help="Captions that stage 1 is measured with.")] = 200,
    threads: Annotated[int, tyro.conf.arg(help="Threads of torch.")] = 1,
) -> None:
    """Measure and record."""
    torch.set_num_threads(threads)
    model = RetrievalModel.from_pretrained("patches")
    with TemporaryDirectory() as folder:
        results = measure(model, scenes, queries, Path(folder))
    write_results(RESULTS, results)


if __name__ == "__main__":
    tyro.cli(main)
