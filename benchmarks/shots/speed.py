"""How fast pointer selectors train, rerank, search and are taught, against the plain way.

    python -m benchmarks.shots.speed                         all suites on a CPU, one thread
    python -m benchmarks.shots.speed --suite train           V1's closed form, V3's pairwise loss
    python -m benchmarks.shots.speed --suite train --device cuda
    python -m benchmarks.shots.speed --suite rerank          candidates projected in advance, or not
    python -m benchmarks.shots.speed --suite index           one query against a million candidates
    python -m benchmarks.shots.speed --suite teach           picks read once, or per candidate

The plain loops are in `model_speed` and give the same numbers (`difference`). Both run in turn;
ratios are of medians, on a CPU of processor time (less disturbed by other programs). The latency of
the index is wall time. Writes one entry per suite and device to results/speed.json; the other
entries stay.
"""

import json as json_module
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from eligo.cli import run_script
from eligo.cli.console import OutFile, print_result
from eligo.cli.flags import Count
from eligo.config.bounds import Bounds
from eligo.io.files import write_text

_MIN_CANDIDATES = 2_000  # fewer candidates need no index


def run(
    suite: Literal["train", "rerank", "index", "teach"] | None = None,
    rounds: Count = 31,
    candidates: Annotated[int, Bounds(_MIN_CANDIDATES)] = 1_000_000,
    device: str = "cpu",
    threads: Count = 1,
    out: OutFile = Path(__file__).parent / "results" / "speed.json",
    json: bool = False,
) -> None:
    """Measure one suite or all, print the results and keep them.

    Args:
        suite: train: V1's closed form and V3's ranking loss; rerank: candidates projected in
            advance; index: one query among many candidates, on the CPU (extra faiss); teach: a step
            with a shared cache of the picks; by default all.
        rounds: Interleaved measurements of both sides (not index).
        candidates: In the index; at least twenty times as many as the texts they are made from.
        device: Where to run: auto, cpu or cuda (not index).
        threads: Threads of torch and FAISS on the CPU.
        out: The file of results.
        json: Print one JSON document.
    """
    import torch

    from benchmarks.shots import index_speed, model_speed
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance

    where = str(resolve_device(device))
    torch.set_num_threads(threads)
    index_speed.set_threads(threads)
    suites: dict[str, Callable[[], dict[str, Any]]] = {
        "train": lambda: model_speed.bench_training(where, rounds),
        "rerank": lambda: model_speed.bench_rerank(where, rounds),
        "index": lambda: index_speed.bench_index(candidates, min(20_000, candidates // 20)),
        "teach": lambda: model_speed.bench_teaching(where, rounds),
    }
    measured = {}
    for name in [suite] if suite else suites:
        used = "cpu" if name == "index" else where
        head = {**provenance(used), "threads": threads}
        measured[f"{name}, {used}"] = {**head, "results": suites[name]()}
        known = json_module.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        write_text(out, json_module.dumps(known | measured, indent=2) + "\n")
    print_result(measured, json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
