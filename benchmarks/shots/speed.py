"""How fast pointer selectors train, rerank, find candidates and are taught, against the plain way.

    python -m benchmarks.shots.speed                         all suites on a CPU, one thread
    python -m benchmarks.shots.speed --suite train           V1's closed form, V3's pairwise loss
    python -m benchmarks.shots.speed --suite train --device cuda
    python -m benchmarks.shots.speed --suite rerank          candidates projected before, or not
    python -m benchmarks.shots.speed --suite index           one query against a million candidates
    python -m benchmarks.shots.speed --suite teach           picks read once for all candidates, or not

What is compared is said in `benchmarks.shots`; the plain ways stand in its `slow.py` and give
the same numbers (`difference`). Both sides run in turn; ratios are of medians, on a CPU of
processor time (other programs disturb it less). The latency of the index is wall time, since that
is what one waits for. Writes one entry per suite and device to benchmarks/shots/results/speed.json; the
others stay.
"""

import json
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from benchmarks.shots.search_speed import bench_index
from benchmarks.shots.teaching_speed import bench_teaching
from benchmarks.shots.training_speed import bench_rerank, bench_training
from eligo.io.files import write_text
from eligo.report.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "speed.json"
Suite = Literal["train", "rerank", "index", "teach"]


def main(
    suite: Suite | None = None,
    device: str = "cpu",
    rounds: int = 31,
    candidates: int = 1_000_000,
    threads: int = 1,
    out: Path = RESULTS,
) -> None:
    """Measure, print and keep.

    Args:
        suite: Which one; all without it.
        device: cpu or cuda (the index is always on the CPU).
        rounds: Of each pair.
        candidates: In the index.
        threads: Of torch and FAISS on the CPU.
        out: Where results are kept.
    """
    torch.set_num_threads(threads)
    _faiss_threads(threads)
    runs: dict[str, Any] = {
        "train": lambda: bench_training(device, rounds),
        "rerank": lambda: bench_rerank(device, rounds),
        "index": lambda: bench_index(candidates),
        "teach": lambda: bench_teaching(device, rounds),
    }
    for name in [suite] if suite else list(runs):
        where = "cpu" if name == "index" else device
        results = runs[name]()
        entry = {**provenance("python -m benchmarks.shots.speed", where), "threads": threads}
        found = {**entry, "results": results}
        known = json.loads(out.read_text()) if out.exists() else {}
        known[f"{name}, {where}"] = found
        write_text(out, json.dumps(known, indent=2) + "\n")
        print(json.dumps(found, indent=2))


def _faiss_threads(count: int) -> None:
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(count)


if __name__ == "__main__":
    tyro.cli(main)
