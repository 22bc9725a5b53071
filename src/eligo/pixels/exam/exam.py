"""All runs of the exam, in one folder: what is there is not made again.

Every arm trains for the same steps on the same scenes and is chosen on validation scenes; arms are
compared on test scenes, whose attribute pairs no training scene has. Runs may go side by side in
several processes; on one GPU a single one of these small networks would leave most of it idle.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from eligo.files import write_text
from eligo.pixels.data.scene_source import SceneSource
from eligo.pixels.exam.arms import ARMS
from eligo.pixels.exam.config import ExamConfig
from eligo.pixels.exam.measure import MEASURES
from eligo.pixels.exam.summary import summarise
from eligo.pixels.exam.tokens import LearnedTokensTask
from eligo.pixels.training.task import PixelsTask
from eligo.train import fit, load_weights

RESULT = "result.json"
Tell = Callable[[int, str], None]


def run_exam(
    config: ExamConfig, out: Path, *, workers: int = 1, tell: Tell = lambda *_: None
) -> dict[str, Any]:
    """Train and measure what is missing, `workers` runs at a time; the whole result."""
    jobs = config.jobs()
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in config.arms()}
    if workers == 1:
        for number, (name, seed) in enumerate(jobs):
            tell(number, f"{name}, seed {seed}")
            results[name][seed] = run_arm(config, out, name, seed)
    else:
        # Fresh processes: a forked one could not use a GPU.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            running = {pool.submit(run_arm, config, out, *job): job for job in jobs}
            for number, done in enumerate(as_completed(running)):
                name, seed = running[done]
                results[name][seed] = done.result()
                tell(number + 1, f"{name}, seed {seed}")
    tell(len(jobs), "done")
    ordered = {name: dict(sorted(found.items())) for name, found in results.items()}
    return summarise(config, ordered)


def run_arm(config: ExamConfig, out: Path, name: str, seed: int) -> dict[str, Any]:
    """What one run came to; trained and measured if it is not there yet."""
    run = config.run(name, seed).replace({"train.out": out})
    path = run.train.folder / RESULT
    asked = run.model_dump(mode="json")
    asked["train"].pop("out")
    if path.is_file():
        found = json.loads(path.read_text("utf-8"))
        if found["asked"] == asked:
            return found
    began = time.monotonic()
    arm = ARMS[name]
    task = LearnedTokensTask(run, arm.learned_tokens) if arm.learned_tokens else PixelsTask(run)
    result = fit(task, task.config.train, resume=True)
    trained = time.monotonic()
    load_weights(result.folder / "best", task.modules)
    task.model.eval()
    source = task.source
    assert isinstance(source, SceneSource)
    found = {
        "arm": name,
        "seed": seed,
        "asked": asked,
        "parameters": sum(p.numel() for part in task.modules.values() for p in part.parameters()),
        "validation_miou": result.best["miou"],
        "best_step": result.best_step,
        "scales": {k: v for k, v in result.best.items() if k.startswith(("scale/", "gate"))},
        "attention_entropy": result.best.get("attention_entropy"),
        "measured": MEASURES[arm.part](task.model, source),
        "seconds": {"train": trained - began, "measure": time.monotonic() - trained},
    }
    write_text(path, json.dumps(found) + "\n")
    return found
