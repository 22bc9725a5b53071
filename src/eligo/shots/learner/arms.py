"""The trained arms of the exam: runs of `eligo shots train`, several at a time if wanted."""

import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.shots.config import ShotsTrainConfig
from eligo.shots.learner.config import ExamConfig
from eligo.shots.training.train import train_selector

TRAINED = "trained.json"
Tell = Callable[[str, int, int], None]


def jobs(config: ExamConfig) -> list[tuple[str, int]]:
    """Arm and seed of every training."""
    return [(arm, seed) for seed in config.seeds for arm in config.arms]


def train_arms(
    config: ExamConfig, taught: Path, out: Path, *, workers: int = 1, tell: Tell = lambda *_: None
) -> None:
    """Every training that is not there yet; one that was interrupted goes on."""
    wanted = [job for job in jobs(config) if not is_trained(config, taught, out, *job)]
    done = len(jobs(config)) - len(wanted)
    tell("train", done, done + len(wanted))
    if workers == 1:
        for number, job in enumerate(wanted, 1):
            train_arm(config, taught, out, *job)
            tell("train", done + number, done + len(wanted))
    elif wanted:
        # Fresh processes: a forked one could not use a GPU.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
            running = [processes.submit(train_arm, config, taught, out, *job) for job in wanted]
            for number, finished in enumerate(as_completed(running), 1):
                finished.result()
                tell("train", done + number, done + len(wanted))


def train_arm(config: ExamConfig, taught: Path, out: Path, arm: str, seed: int) -> None:
    """One of them."""
    run = config.run(arm, seed, taught, out)
    result = train_selector(run, resume=True)
    told = {"best_step": result.best_step, "last_step": result.last_step, "best": result.best}
    told["asked"] = _asked(run)
    write_text(result.folder / TRAINED, json.dumps(told, indent=1) + "\n")


def is_trained(config: ExamConfig, taught: Path, out: Path, arm: str, seed: int) -> bool:
    """Whether a training has ended that was asked for in the same words."""
    run = config.run(arm, seed, taught, out)
    mark = run.train.folder / TRAINED
    if not mark.is_file():
        return False
    with reading(mark, "the result of a training; remove it to train again"):
        return read_json(mark)["asked"] == _asked(run)


def _asked(run: ShotsTrainConfig) -> dict[str, Any]:
    """All but where things lie: folders may move."""
    asked = run.model_dump(mode="json")
    del asked["train"]["out"], asked["data"]["path"]
    return asked
