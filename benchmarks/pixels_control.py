"""The missed control of the pixels exam, and what was tried to mend it.

    python benchmarks/pixels_control.py --workers 6

A network without words that has as many parameters as one with them should be no better at twins,
whose names only words tell: at most 3 points of their pixels, to the end of the interval. In the
exam it was. Here both are trained again: longer, longer on more scenes, or with the parameters
elsewhere. Results lie in `--out` and are not made again; the first row is the exam's own, from its
folder if it is there.

Writes benchmarks/results/pixels_control.json.
"""

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import tyro

from eligo.config import load_config
from eligo.files import write_text
from eligo.pixels.exam.config import ExamConfig
from eligo.pixels.exam.exam import run_arm
from eligo.report.intervals import paired_bootstrap
from eligo.report.provenance import made_on, provenance

RESULTS = Path(__file__).parent / "results" / "pixels_control.json"
PLAIN, WIDE = "twins_no_words", "twins_more_parameters"
BAR = 3.0  # points
# A feed-forward part of each block that is wide enough to hold as many parameters.
_BLOCKS = {"encoder.ffn_ratios": (14, 14, 13, 13)}


@dataclass(frozen=True)
class Trial:
    """One remedy: both networks under other settings, or the parameters elsewhere."""

    says: str
    settings: dict[str, Any]
    wide_settings: dict[str, Any] | None = None
    """Of the one with more parameters, in place of the exam's wider head."""


TRIALS = {
    "pixels_exam": Trial("as in the exam", {}),
    "steps": Trial("twice the steps", {"steps": 1600}),
    "scenes": Trial(
        "four times the steps and scenes", {"steps": 3200, "train_images": 16_000}
    ),
    "blocks": Trial("the parameters in the encoder's blocks", {}, _BLOCKS),
}  # fmt: skip


def configs(trial: Trial) -> dict[str, tuple[ExamConfig, str]]:
    """The exam and the arm of both networks."""
    config = load_config(ExamConfig, "pixels/exam").replace(trial.settings)
    if trial.wide_settings is None:
        return {PLAIN: (config, PLAIN), WIDE: (config, WIDE)}
    wider = config.replace({"changes": config.changes | trial.wide_settings})
    return {PLAIN: (config, PLAIN), WIDE: (wider, PLAIN)}


def folder(out: Path, name: str, which: str) -> Path:
    """Where runs of one network lie; where a trial changes nothing, they are the exam's."""
    changes_nothing = not TRIALS[name].settings
    own = which == WIDE and TRIALS[name].wide_settings is not None
    return out / ("pixels_exam" if changes_nothing and not own else f"pixels_control/{name}")


def main(workers: int = 1, out: Path = Path("runs")) -> None:
    """Train what is missing, compare, record."""
    exam = load_config(ExamConfig, "pixels/exam")
    wanted = [(name, which, s) for name in TRIALS for s in exam.seeds for which in (PLAIN, WIDE)]
    # Trials share runs; the long ones come first.
    jobs = dict.fromkeys(_job(out, *one) for one in wanted)
    jobs = sorted(jobs, key=lambda job: -_config(job).steps)
    # Fresh processes: a forked one could not use a GPU.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        running = {job: processes.submit(_train, job) for job in jobs}
        made = {job: one.result() for job, one in running.items()}
    found = {one: made[_job(out, *one)] for one in wanted}
    rows = [_row(name, exam, found) for name in TRIALS]
    for row in rows:
        print(json.dumps(row))
    told = provenance("python benchmarks/pixels_control.py", "cpu")
    told["hardware"] = ", ".join(made_on(made.values()))
    write_text(RESULTS, json.dumps(told | {"bar": BAR, "trials": rows}, indent=1) + "\n")


Job = tuple[Path, str, str, int]
"""Folder, trial, network and seed of a run."""


def _job(out: Path, name: str, which: str, seed: int) -> Job:
    """Of a run that two trials share, the first one's."""
    place = folder(out, name, which)
    return place, "pixels_exam" if place.name == "pixels_exam" else name, which, seed


def _config(job: Job) -> ExamConfig:
    return configs(TRIALS[job[1]])[job[2]][0]


def _train(job: Job) -> dict[str, Any]:
    place, name, which, seed = job
    config, arm = configs(TRIALS[name])[which]
    return run_arm(config, place, arm, seed)


_SHOWN = ("twin_iou", "merged_iou", "other_iou")


def _row(
    name: str, exam: ExamConfig, found: dict[tuple[str, str, int], dict[str, Any]]
) -> dict[str, Any]:
    """Points between both networks, and what each of them knows of outlines and of names."""
    runs = {which: [found[name, which, seed] for seed in exam.seeds] for which in (PLAIN, WIDE)}
    scenes = {w: [run["measured"]["per_scene"] for run in r] for w, r in runs.items()}
    differences = [
        [100 * (a - b) for a, b in zip(wide, plain, strict=True)]
        for wide, plain in zip(scenes[WIDE], scenes[PLAIN], strict=True)
    ]
    points, low, high = paired_bootstrap(differences, resamples=exam.resamples)
    row: dict[str, Any] = {"trial": TRIALS[name].says, "points": points, "low": low, "high": high}
    row["met"] = max(abs(low), abs(high)) <= BAR
    for which, ran in runs.items():
        means = {key: mean(run["measured"][key] for run in ran) for key in _SHOWN}
        row[which] = {"parameters": ran[0]["parameters"], **means}
        row[which]["of_merged"] = means["twin_iou"] / means["merged_iou"]
        row[which]["right_pixels"] = mean(mean(part) for part in scenes[which])
    return row


if __name__ == "__main__":
    tyro.cli(main)
