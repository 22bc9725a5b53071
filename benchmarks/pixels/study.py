"""The study of words, temperature and depth: train all variants, measure and compare them.

    python -m benchmarks.pixels.study            64 trainings, on a GPU
    python -m benchmarks.pixels.study --quick    a smoke run

Follow-ups to the control with more parameters: train `--only twins_no_words twins_more_parameters`
with `--steps 1600`, or with `--steps 3200 --train_images 16000`, each in an `--out` of its own, or
train `--only twins_no_words twins_wider_blocks` (results/control.json).

Every variant trains for the same steps on the same scenes, and validation scenes choose its
checkpoint. Variants are compared on test scenes, with attribute pairs that no training scene has.
Results in the output folder are not computed again. Several runs can share one GPU: one of these
small networks leaves most of it idle.
"""

import json as json_module
import logging
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
from accelerate import PartialState
from torch import Tensor, nn

from benchmarks.pixels.measure import MEASURES
from benchmarks.pixels.summary import summarise
from benchmarks.pixels.variants import PARTS, StudyConfig
from benchmarks.studies import print_end, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config import load_config
from eligo.config.bounds import Bounds
from eligo.errors import ConfigError, EligoError
from eligo.io.files import write_text
from eligo.io.reading import read_json, reading
from eligo.pixels.config import PixelsTrainConfig, ScenesDataConfig, WordsTextConfig
from eligo.pixels.data.scene_source import SceneSet, SceneSource
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.pixels.text.encoders import WordsEncoder
from eligo.pixels.training.task import PixelsTask
from eligo.report.provenance import provenance
from eligo.train import OptimizerSpec, fit, load_weights
from eligo.train.progress import ProgressBar

CONFIG = Path(__file__).with_name("study.yaml")
RESULT = "result.json"
Job = tuple[str, int]  # variant and seed
_log = logging.getLogger("eligo.pixels")


def run(
    config: Annotated[StudyConfig, str(CONFIG)],
    *,
    out: Path = Path("runs/pixels_study"),
    quick: bool = False,
    workers: Count = 1,
    minutes: Annotated[float, Bounds(0)] | None = None,
    json: bool = False,
) -> None:
    """Train and compare all variants; started again, it computes only what is missing.

    Writes a run folder per variant and seed, and study.json: tables, paired differences with 95 %
    intervals (over scenes and seeds), and whether each target is reached.

    Args:
        out: The folder to write to.
        quick: A smoke run on a CPU, in the subfolder `quick`; the numbers mean nothing.
        workers: Trainings at a time, each in its own process.
        minutes: Start no training after this time; the result lists what is missing.
        json: Print one JSON document.
    """
    config, out = config.quick() if quick else config, study_folder(out, quick)
    with ProgressBar("runs", len(config.jobs())) as bar:
        limit = math.inf if minutes is None else minutes
        tables = run_study(config, out, workers=workers, minutes=limit, report=bar.update)
    device = str(PartialState().device)
    head = provenance(device) | {"quick": quick}
    document = head | {"config": config.model_dump(mode="json")} | tables
    written = write_text(out / "study.json", json_module.dumps(document, indent=1) + "\n")
    print_result(document if json else _tables(tables), json)
    if not json:
        print_end(quick, written)


_TITLES = {
    "twins": "twins (IoU; of_merged: share of the IoU with both names as one)",
    "noisy tags": "noisy tags (IoU)",
    "binding": "binding (share of objects named right, by number of phrases)",
    "depth": "depth (IoU of camouflaged objects, by the depth given)",
    "differences": "differences (points, 95 % interval)",
    "targets": "targets",
    "missing": "missing",
}


def _tables(result: dict[str, Any]) -> dict[str, Any]:
    """The tables to print, without sizes and single seeds, which are in study.json."""
    omitted = {"parameters", "by_seed"}
    tables = {
        name: [{key: value for key, value in row.items() if key not in omitted} for row in rows]
        for name in _TITLES
        if (rows := result.get(name))
    }
    for part in PARTS:
        for row in tables.get(part, ()):
            row["variant"] = row["variant"].removeprefix(f"{part}_")
    return {_TITLES[name]: rows for name, rows in tables.items()}


def run_study(
    config: StudyConfig,
    out: Path,
    *,
    workers: int = 1,
    minutes: float = math.inf,
    report: Callable[[int, str], None] = lambda *_: None,
) -> dict[str, Any]:
    """Train and measure what is missing, `workers` runs at a time; returns the whole result.

    The result lists runs that failed, or that were not started within `minutes`, as missing.
    """
    jobs = config.jobs()
    results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in config.variants()}
    missing: dict[Job, str] = {}
    until = time.time() + 60 * minutes
    for number, ((name, seed), outcome) in enumerate(
        _results(config, out, jobs, workers, until), 1
    ):
        if isinstance(outcome, str):
            missing[name, seed] = outcome
        else:
            results[name][seed] = outcome
        _log.info("%s, seed %d: %s", name, seed, outcome if isinstance(outcome, str) else "done")
        report(number, f"{name}, seed {seed}")
    ordered = {name: dict(sorted(runs.items())) for name, runs in results.items() if runs}
    return summarise(config, ordered) | {
        "missing": [
            {"variant": n, "seed": s, "why": missing[n, s]} for n, s in jobs if (n, s) in missing
        ]
    }


def _results(
    config: StudyConfig, out: Path, jobs: list[Job], workers: int, until: float
) -> Iterator[tuple[Job, dict[str, Any] | str]]:
    """Yield the result of every run, in the order in which they end."""
    if workers == 1:
        for job in jobs:
            yield job, _try_variant(config, out, *job, until)
        return
    # Spawned, because a forked process cannot use the GPU.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        running = {pool.submit(_try_variant, config, out, *job, until): job for job in jobs}
        for done in as_completed(running):
            yield running[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _try_variant(
    config: StudyConfig, out: Path, name: str, seed: int, until: float
) -> dict[str, Any] | str:
    """The result of a run, or why there is none: a failed run must not stop the others."""
    if time.time() > until and _stored(_training(config, out, name, seed)) is None:
        return "out of time"
    try:
        return run_variant(config, out, name, seed)
    except EligoError as error:
        return str(error)


def run_variant(config: StudyConfig, out: Path, name: str, seed: int) -> dict[str, Any]:
    """Return the result of one run; trains and measures it unless its folder has the result."""
    training = _training(config, out, name, seed)
    if (stored := _stored(training)) is not None:
        return stored
    began, variant = time.monotonic(), config.variants()[name]
    tokens = variant.learned_tokens
    task = LearnedTokensTask(training, tokens) if tokens else PixelsTask(training)
    fitted = fit(task, task.config.train, resume=True)
    trained = time.monotonic()
    load_weights(fitted.chosen, task.modules)
    task.model.eval()
    source = task.source
    assert isinstance(source, SceneSource)
    result = {
        "variant": name,
        "seed": seed,
        "config": _settings(training),
        "parameters": sum(p.numel() for part in task.modules.values() for p in part.parameters()),
        "validation_miou": fitted.best["miou"],
        "best_step": fitted.best_step,
        "scales": {k: v for k, v in fitted.best.items() if k.startswith(("scale/", "gate"))},
        "attention_entropy": fitted.best.get("attention_entropy"),
        "measured": MEASURES[variant.part](task.model, source),
        "seconds": {"train": trained - began, "measure": time.monotonic() - trained},
        "made": provenance(str(task.device)),
    }
    write_text(training.train.folder / RESULT, json_module.dumps(result) + "\n")
    return result


def _training(config: StudyConfig, out: Path, name: str, seed: int) -> PixelsTrainConfig:
    return config.run(name, seed).replace({"train.out": out})


def _settings(training: PixelsTrainConfig) -> dict[str, Any]:
    """The config without its folder, which may be moved."""
    settings = training.model_dump(mode="json")
    settings["train"].pop("out")
    return settings


def _stored(training: PixelsTrainConfig) -> dict[str, Any] | None:
    """The stored result of the same run; settings that were added since have their default."""
    path = training.train.folder / RESULT
    if not path.is_file():
        return None
    result = read_json(path)
    with reading(path, "the result of a run; remove it to run again"):
        try:
            stored = _settings(load_config(PixelsTrainConfig, dict(result["config"])))
        except ConfigError:
            return None
    return result if stored == _settings(training) else None


class LearnedTokens(nn.Module):
    """Learned vectors of the length that words have."""

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(count, dim) / dim**0.5)

    def text(self, batch: int) -> TextBatch:
        """Return the same vectors for every image."""
        vectors = self.vectors.expand(batch, -1, -1)
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)
        return TextBatch(vectors, mask)


class TokenSource(SceneSource):
    """Scenes whose words are the learned vectors instead of tags."""

    def __init__(
        self, config: PixelsTrainConfig, tokens: LearnedTokens, device: torch.device
    ) -> None:
        assert isinstance(config.data, ScenesDataConfig)
        encoder = WordsEncoder(WordsTextConfig())  # required by SceneSource, but unused
        super().__init__(config.data, config.inputs, config.text, encoder, config.augment, device)
        self.tokens = tokens

    def words(
        self,
        scenes: SceneSet,  # noqa: ARG002
        rows: Tensor,
        provenance: Provenance,
        num_phrases: int,  # noqa: ARG002
    ) -> TextBatch | None:
        """Return the learned vectors."""
        return None if provenance == "none" else self.tokens.text(len(rows))


class LearnedTokensTask(PixelsTask):
    """Trains a network together with learned vectors, a control for words."""

    def __init__(self, config: PixelsTrainConfig, count: int) -> None:
        super().__init__(config)
        self.tokens = LearnedTokens(count, config.text_dim)
        self.modules["tokens"] = self.tokens
        self.optimizers = {"all": OptimizerSpec(config.optimizer, ("model", "tokens"))}

    def open_source(self) -> TokenSource:
        """Return the scenes with the learned vectors as words."""
        return TokenSource(self.config, self.tokens, self.device)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
