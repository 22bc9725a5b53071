"""`eligo shots bench`: how fast selectors train, rerank, search and are taught here."""

from typing import Annotated, Any, Literal

from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config.bounds import Bounds

_LEAST = 2_000  # fewer candidates need no index


def run(
    suite: Literal["train", "rerank", "index", "teach"] = "train",
    rounds: Count = 15,
    candidates: Annotated[int, Bounds(_LEAST)] = 1_000_000,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Measure one suite; every ratio is against the plain way, in the same run.

    The committed results are made by benchmarks/shots/speed.py, from the same functions.

    Args:
        suite: train: V1's closed form and V3's ranking loss; rerank: candidates projected before;
            index: one query among many candidates, on the CPU (extra faiss); teach: a step with
            the picks before it read once.
        rounds: Interleaved measurements of both ways (not index).
        candidates: In the index; twenty for each text they are made from.
        device: Where to run: auto, cpu or cuda (not index).
        json: Print one JSON document.
    """
    from eligo.pretrained.devices import resolve_device

    where = str(resolve_device(device))
    told: dict[str, Any]
    if suite == "train":
        from benchmarks.shots.training_speed import bench_training

        found = bench_training(where, rounds)
        told = {
            f"{name}, {part}": ratio
            for name, parts in found.items()
            for part, ratio in parts.items()
            if part != "difference"
        }
    elif suite == "rerank":
        from benchmarks.shots.training_speed import bench_rerank

        told = bench_rerank(where, rounds)
    elif suite == "teach":
        from benchmarks.shots.teaching_speed import bench_teaching

        told = bench_teaching(where, rounds)
    else:
        from benchmarks.shots.search_speed import bench_index

        told = bench_index(candidates, num_texts=min(20_000, candidates // 20))
    print_result(told, json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
