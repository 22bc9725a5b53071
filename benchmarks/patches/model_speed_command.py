"""`eligo patches bench`: how fast a model matches and searches on this machine."""

from dataclasses import asdict
from pathlib import Path

from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.cli.patches.flags import open_model


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
    """Measure encoding, every kernel against the plain loop, and the search of an index.

    The committed comparison with code outside eligo is benchmarks/patches/kernels.py.

    Args:
        num_images: Generated scenes to match.
        num_texts: Captions to match them with.
        rounds: Interleaved measurements of every kernel.
        index: Also search this index.
        rerank: Entries scored exactly in a search.
        num_queries: How many searches.
        model: Folder of a model or run; by default the one that comes with eligo.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    opened = open_model(model, device)
    from benchmarks.patches.model_speed import bench_kernels, bench_search
    from eligo.patches.index import Searcher

    encode, speeds = bench_kernels(opened, num_images, num_texts, rounds)
    told = {"encoding, ms each": encode, "matching": [asdict(speed) for speed in speeds]}
    if index is not None:
        told["searching"] = asdict(bench_search(Searcher(opened, index), rerank, num_queries))
    print_result(told, json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
