"""Speed of generating scenes, images and questions.

    python -m benchmarks.scenes.speed            CPU, and CUDA if available
    python -m benchmarks.scenes.speed --device cpu --seconds 5

Writes one entry per kind of device to benchmarks/scenes/results/speed.json; the other entries stay.
The CPU is measured with one process of two threads, and with two processes of one thread, like a
loader with two workers.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

from eligo.io.files import write_text
from eligo.report.provenance import provenance
from eligo.scenes.config import ROOMS, SceneConfig
from eligo.scenes.graph import draw_scenes
from eligo.scenes.painter import render
from eligo.scenes.questions import draw_questions

RESULTS = Path(__file__).parent / "results" / "speed.json"
CORES = 2
QUESTIONS = 16


@dataclass(frozen=True)
class Rate:
    """Items per second: the median of the rounds, the slowest and the fastest."""

    median: float
    low: float
    high: float


def main(
    device: Annotated[
        Literal["all", "cpu", "cuda"], tyro.conf.arg(help="What to measure.")
    ] = "all",
    seconds: Annotated[float, tyro.conf.arg(help="Length of one round.")] = 3.0,
    rounds: Annotated[int, tyro.conf.arg(help="Rounds of each measurement.")] = 5,
) -> None:
    """Measure and record."""
    if device in ("all", "cpu"):
        _record("cpu", _on_cpu(seconds, rounds))
    if device == "cuda" or (device == "all" and torch.cuda.is_available()):
        _record("cuda", _on_cuda(seconds, rounds))


def _on_cpu(seconds: float, rounds: int) -> dict[str, Rate]:
    torch.set_num_threads(CORES)
    rates = {
        "images/s, 336 px, 2 threads": _rate(_images(SceneConfig(), 64), seconds, rounds),
        "images/s, 96x128 px, 2 threads": _rate(_images(ROOMS, 256), seconds, rounds),
        "scene graphs/s, 2 threads": _rate(_graphs(1024), seconds, rounds),
        "questions/s, 2 threads": _rate(_questions(1024), seconds, rounds),
    }
    # Spawned: forking after torch has started its threads is not safe.
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        for name, kind, chunk in (
            ("images/s, 336 px, 2 processes", "images", 16),
            ("questions/s, 2 processes", "questions", 512),
        ):
            jobs = [(kind, chunk, seconds)] * CORES
            sums = [sum(pool.map(_worker, jobs, chunksize=1)) for _ in range(rounds + 1)]
            rates[name] = _summary(sums[1:])  # without the first round, which imports modules
    return rates


def _on_cuda(seconds: float, rounds: int) -> dict[str, Rate]:
    return {
        "images/s, 336 px": _rate(_images(SceneConfig(), 512, "cuda"), seconds, rounds),
        "images/s, 96x128 px": _rate(_images(ROOMS, 2048, "cuda"), seconds, rounds),
        "scene graphs/s": _rate(_graphs(16384, "cuda"), seconds, rounds),
        "questions/s": _rate(_questions(8192, "cuda"), seconds, rounds),
    }


Batches = Callable[[int], int]
"""Makes the n-th batch, waits for the device, and returns the number of items."""


def _images(config: SceneConfig, batch: int, device: str = "cpu") -> Batches:
    def work(step: int) -> int:
        render(draw_scenes(config, "train", range(step * batch, (step + 1) * batch), device))
        _finish(device)
        return batch

    return work


def _graphs(batch: int, device: str = "cpu") -> Batches:
    def work(step: int) -> int:
        draw_scenes(SceneConfig(), "train", range(step * batch, (step + 1) * batch), device)
        _finish(device)
        return batch

    return work


def _questions(batch: int, device: str = "cpu") -> Batches:
    def work(step: int) -> int:
        graph = draw_scenes(SceneConfig(), "train", range(step * batch, (step + 1) * batch), device)
        draw_questions(graph, QUESTIONS)
        _finish(device)
        return batch * QUESTIONS

    return work


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _once(work: Batches, seconds: float) -> float:
    began, done, step = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        done += work(step)
        step += 1
    return done / (time.perf_counter() - began)


def _rate(work: Batches, seconds: float, rounds: int) -> Rate:
    work(0)  # warm-up: tables are cached
    return _summary([_once(work, seconds) for _ in range(rounds)])


def _summary(rates: list[float]) -> Rate:
    ordered = sorted(rates)
    numbers = (ordered[len(ordered) // 2], ordered[0], ordered[-1])
    return Rate(*(round(number, 1) for number in numbers))


def _worker(job: tuple[str, int, float]) -> float:
    kind, batch, seconds = job
    torch.set_num_threads(1)
    work = _images(SceneConfig(), batch) if kind == "images" else _questions(batch)
    work(0)
    return _once(work, seconds)


def _record(device: str, rates: dict[str, Rate]) -> None:
    entries = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    entries[device] = provenance(device) | {
        "rates": {name: asdict(rate) for name, rate in rates.items()}
    }
    write_text(RESULTS, json.dumps(entries, indent=2) + "\n")
    for name, rate in rates.items():
        print(f"{device}: {name}: {rate.median:,.0f} ({rate.low:,.0f}-{rate.high:,.0f})")


if __name__ == "__main__":
    tyro.cli(main)
