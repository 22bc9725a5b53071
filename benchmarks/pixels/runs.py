"""All runs of the exam, in one folder: what is there is not made again.

Every arm trains for the same steps on the same scenes and is chosen on validation scenes; arms are
compared on test scenes, whose attribute pairs no training scene has. Runs may go side by side in
several processes; on one GPU a single one of these small networks would leave most of it idle.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.pixels.config import ExamConfig
from benchmarks.pixels.measure import MEASURES
from benchmarks.pixels.summary import summarise
from benchmarks.pixels.tokens import LearnedTokensTask
from benchmarks.pixels.variants import ARMS
from eligo.config import load_config
from eligo.errors import ConfigError, EligoError
from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.pixels.config import PixelsTrainConfig
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.training.task import PixelsTask
from eligo.report.provenance import provenance
from eligo.train import fit, load_weights

logger = logging.getLogger("eligo.pixels")

RESULT = "result.json"
Tell = Callable[[int, str], None]
Job = tuple[str, int]


def run_exam(
    config: ExamConfig,
    out: Path,
    *,
    workers: int = 1,
    minutes: float = math.inf,
    tell: Tell = lambda *_: None,
) -> dict[str, Any]:
    """Train and measure what is missing, `workers` runs at a time; the whole result.

    After `minutes` no run is started any more; the result then says which ones are missing, as it
    does of a training that failed.
    """
    jobs = config.jobs()
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in config.arms()}
    missing: dict[Job, str] = {}
    until = time.time() + 60 * minutes
    for number, ((name, seed), found) in enumerate(_results(config, out, jobs, workers, until), 1):
        if isinstance(found, str):
            missing[name, seed] = found
        else:
            results[name][seed] = found
        logger.info("%s, seed %d: %s", name, seed, _gist(found))
        tell(number, f"{name}, seed {seed}")
    ordered = {name: dict(sorted(found.items())) for name, found in results.items() if found}
    return summarise(config, ordered) | {
        "missing": [
            {"arm": n, "seed": s, "why": missing[n, s]} for n, s in jobs if (n, s) in missing
        ]
    }


def _results(
    config: ExamConfig, out: Path, jobs: list[Job], workers: int, until: float
) -> Iterator[tuple[Job, dict[str, Any] | str]]:
    """What every run came to, in the order in which they end."""
    if workers == 1:
        for job in jobs:
            yield job, _attempt(config, out, *job, until)
        return
    # Fresh processes: a forked one could not use a GPU.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        running = {pool.submit(_attempt, config, out, *job, until): job for job in jobs}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after an error, nothing new


def _attempt(
    config: ExamConfig, out: Path, name: str, seed: int, until: float
) -> dict[str, Any] | str:
    """The result of a run, or why there is none: one that diverges must not end all others."""
    late = time.time() > until and _stored(_run(config, out, name, seed)) is None
    if late:
        return "out of time"
    try:
        return run_arm(config, out, name, seed)
    except EligoError as error:
        return str(error)


def run_arm(config: ExamConfig, out: Path, name: str, seed: int) -> dict[str, Any]:
    """What one run came to; trained and measured if it is not there yet."""
    run = _run(config, out, name, seed)
    if (stored := _stored(run)) is not None:
        return stored
    began = time.monotonic()
    arm = ARMS[name]
    task = LearnedTokensTask(run, arm.learned_tokens) if arm.learned_tokens else PixelsTask(run)
    result = fit(task, task.config.train, resume=True)
    trained = time.monotonic()
    load_weights(result.chosen, task.modules)
    task.model.eval()
    source = task.source
    assert isinstance(source, SceneSource)
    found = {
        "arm": name,
        "seed": seed,
        "asked": _asked(run),
        "parameters": sum(p.numel() for part in task.modules.values() for p in part.parameters()),
        "validation_miou": result.best["miou"],
        "best_step": result.best_step,
        "scales": {k: v for k, v in result.best.items() if k.startswith(("scale/", "gate"))},
        "attention_entropy": result.best.get("attention_entropy"),
        "measured": MEASURES[arm.part](task.model, source),
        "seconds": {"train": trained - began, "measure": time.monotonic() - trained},
        "made": provenance("eligo", str(next(task.model.parameters()).device)),
    }
    write_text(run.train.folder / RESULT, json.dumps(found) + "\n")
    return found


def _run(config: ExamConfig, out: Path, name: str, seed: int) -> PixelsTrainConfig:
    return config.run(name, seed).replace({"train.out": out})


def _asked(run: PixelsTrainConfig) -> dict[str, Any]:
    """The config without the place, so that a folder can be moved."""
    asked = run.model_dump(mode="json")
    asked["train"].pop("out")
    return asked


def _stored(run: PixelsTrainConfig) -> dict[str, Any] | None:
    """What the same run came to before; a setting that is newer than its result has its default."""
    path = run.train.folder / RESULT
    if not path.is_file():
        return None
    found = read_json(path)
    with reading(path, "the result of a run; remove it to run again"):
        try:
            asked = _asked(load_config(PixelsTrainConfig, dict(found["asked"])))
        except ConfigError:
            return None
    return found if asked == _asked(run) else None


def _gist(found: dict[str, Any] | str) -> str:
    """One run in a few words, to see early whether the exam goes well."""
    if isinstance(found, str):
        return found
    measured, seconds = found["measured"], round(sum(found["seconds"].values()))
    if "accuracy" in measured:
        shares = ", ".join(f"{count}: {share:.3f}" for count, share in measured["accuracy"].items())
        told = f"bound, by phrases {shares}"
    elif "twin_iou" in measured:
        told = (
            f"IoU of twins {measured['twin_iou']:.3f}, merged {measured['merged_iou']:.3f}, "
            f"of others {measured['other_iou']:.3f}"
        )
    else:
        told = "IoU of hidden things, depth " + ", ".join(
            f"{depth} {row['iou']:.3f}" for depth, row in measured.items()
        )
    return f"{told} ({seconds} s)"
