"""Speed of training the small network from files, with and without worker processes.

    python -m benchmarks.pixels.loading

Writes generated rooms as JPEG and PNG files to a temporary folder, then measures steps a second of
the training batches alone, of the whole training, and of the training on one batch that stays on
the device, which is as fast as the training can be. The network is that of `pixels/scenes`; the
device is the GPU, if there is one. With few steps, what workers read ahead counts too much.

Writes benchmarks/pixels/results/loading.json.
"""

import json as json_format
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from benchmarks.timing import timed, write_results
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config import load_config
from eligo.pixels import PixelsTrainConfig
from eligo.pixels.data.batch import Batch
from eligo.pixels.training.task import PixelsTask
from eligo.scenes.config import ROOMS
from eligo.scenes.export import ExportConfig, export_scenes
from eligo.train import fit
from eligo.train.data import worker_count
from eligo.train.processes import Processes

RESULTS = Path(__file__).parent / "results" / "loading.json"


class OneBatchTask(PixelsTask):
    """Trains on its first batch again and again."""

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Yield that batch."""
        return repeat(next(super().batches(start_step, rank, world_size, device)))


def run(
    num_images: Count = 320,
    height: Count = 480,
    width: Count = 640,
    batch_size: Count = 32,
    steps: Count = 120,
    num_workers: int | None = None,
    precision: Literal["no", "bf16"] = "no",
    json: bool = False,
) -> None:
    """Measure the training from files without workers and with them.

    Args:
        num_images: Number of rooms; a tenth of them is for validation.
        height: Height of an image in pixels.
        width: Width of an image in pixels.
        batch_size: Images in a step.
        steps: Measured steps, after half as many to warm up.
        num_workers: Worker processes; none: the default of a training.
        precision: Autocast type of the step; no: float32.
        json: Print one JSON document.
    """
    device = Processes().device
    workers = worker_count(num_workers)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = _write_files(folder / "rooms", num_images, height, width)
        config = load_config(PixelsTrainConfig, "pixels/scenes").replace({
            "data": data, "train.out": folder, "train.batch_size": batch_size,
            "train.precision": precision, "train.check_data": False,
            "train.total_steps": 3 * max(1, steps // 2), "train.log_every": max(1, steps // 2),
        })  # fmt: skip
        rows = []
        for count in dict.fromkeys((0, workers)):
            one = config.replace({"data.num_workers": count, "train.name": f"workers_{count}"})
            rows.append({
                "workers": count,
                "batches": _loading_speed(one, steps),
                "training": _training_speed(PixelsTask(one)),
            })  # fmt: skip
        limit = _training_speed(OneBatchTask(config.replace({"train.name": "one_batch"})))
    first, last = rows[0]["training"], rows[-1]["training"]
    result = {
        "from files, steps a second": rows,
        "summary": {
            "training on one batch, steps a second": limit,
            "training from files, of that": last / limit,
            "training with workers, of that without": last / first,
        },
    }
    print_result(result, json)
    case = f"{device.type} {precision} {height}x{width} batch {batch_size}"
    write_results(RESULTS, result, str(device), key=case)


def _write_files(out: Path, num_images: int, height: int, width: int) -> dict[str, Any]:
    """Write rooms as files; return the section `data` of a config that reads them."""
    rooms = ROOMS.replace({"height": height, "width": width})
    counts: dict[str, Any] = {
        "train": num_images,
        "validation": 0,
        "test": 0,
        "questions": 0,
        "captions": 0,
    }
    export_scenes(ExportConfig(format="jsonl", scenes=rooms, **counts), out)
    files = {"train": out / "train.jsonl", "classes": out / "classes.txt"}
    return {"kind": "jsonl", **files, "words_are": "oracle"}


def _loading_speed(config: PixelsTrainConfig, steps: int) -> float:
    """Steps a second of the batches alone, on the device, after half as many to warm up."""
    device = Processes().device
    task = PixelsTask(config)
    task.to(device)
    stream = task.batches(0, 0, 1, device)
    for _ in islice(stream, max(1, steps // 2)):
        pass
    seconds, _ = timed(lambda: [None for _ in islice(stream, steps)], device)
    return steps / seconds


def _training_speed(task: PixelsTask) -> float:
    """Steps a second of `fit`, without the first third."""
    log = fit(task, task.config.train).folder / "metrics.jsonl"
    lines = map(json_format.loads, log.read_text("utf-8").splitlines())
    speeds = [line["steps_per_second"] for line in lines if line["split"] == "train"][1:]
    return len(speeds) / sum(1 / speed for speed in speeds)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
