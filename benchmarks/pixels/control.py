"""The missed control of the pixels exam, and what was tried to mend it.

    python -m benchmarks.pixels.control --workers 6

A network without words that has as many parameters as one with them should be no better at twins,
whose names only words tell: at most 3 points of their pixels, to the end of the interval. In the
exam it was. Here both are trained again: longer, longer on more scenes, or with the parameters
elsewhere. Results lie in `--out` and are not made again; the first row is the exam's own, from its
folder if it is there.

Writes benchmarks/pixels/results/control.json.
"""

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import tyro

from benchmarks.pixels.config import ExamConfig
from benchmarks.pixels.runs import run_arm
from benchmarks.pixels.summary import CONTROL, Runs, difference, twins_row
from eligo.config import load_config
from eligo.io.files import write_text
from eligo.report.provenance import made_on, provenance

RESULTS = Path(__file__).parent / "results" / "control.json"
PLAIN, WIDE = "twins_no_words", "twins_more_parameters"
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
    config = load_config(ExamConfig, Path(__file__).with_name("study.yaml")).replace(trial.settings)
    if trial.wide_settings is None:
        return {PLAIN: (config, PLAIN), WIDE: (config, WIDE)}
    wider = config.replace({"changes": config.changes | trial.wide_settings})
    return {PLAIN: (config, PLAIN), WIDE: (wider, PLAIN)}


def folder(out: Path, name: str, which: str) -> Path:
    """Where runs of one network lie; where a trial changes nothing, they are the exam's."""
    changes_nothing = not TRIALS[name].settings
    own = which == WIDE and TRIALS[name].wide_settings is not None
    return out / ("pixels_exam" if changes_nothing and not own else f"pixels_control/{name}")


Run = tuple[Path, str, int]
"""Folder, network and seed."""


def wanted(out: Path, exam: ExamConfig) -> dict[Run, tuple[ExamConfig, str]]:
    """The exam and the arm of every run; one that two trials share is there once."""
    return {
        (folder(out, name, which), which, seed): made_by
        for name, trial in TRIALS.items()
        for which, made_by in configs(trial).items()
        for seed in exam.seeds
    }


def main(workers: int = 1, out: Path = Path("runs")) -> None:
    """Train what is missing, compare, record."""
    exam = load_config(ExamConfig, Path(__file__).with_name("study.yaml"))
    jobs = sorted(wanted(out, exam).items(), key=lambda job: -job[1][0].steps)  # long ones first
    # Fresh processes: a forked one could not use a GPU.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        running = {
            run: processes.submit(run_arm, config, run[0], arm, run[2])
            for run, (config, arm) in jobs
        }
        made = {run: one.result() for run, one in running.items()}
    rows = []
    for name in TRIALS:
        runs = {
            which: {seed: made[folder(out, name, which), which, seed] for seed in exam.seeds}
            for which in (PLAIN, WIDE)
        }
        rows.append(_row(name, exam, runs))
        print(json.dumps(rows[-1]))
    told = provenance("python -m benchmarks.pixels.control", "cpu")
    told["hardware"] = ", ".join(made_on(made.values()))
    write_text(RESULTS, json.dumps(told | {"bar": CONTROL, "trials": rows}, indent=1) + "\n")


_SHOWN = ("parameters", "twin_iou", "merged_iou", "other_iou", "of_merged")


def _row(name: str, exam: ExamConfig, runs: dict[str, Runs]) -> dict[str, Any]:
    """Points between both networks, and what each of them knows of outlines and of names."""
    apart = difference(runs[WIDE], runs[PLAIN], exam.resamples)
    row: dict[str, Any] = {"trial": TRIALS[name].says, **apart}
    row["met"] = max(abs(apart["low"]), abs(apart["high"])) <= CONTROL
    for which, ran in runs.items():
        told = twins_row(which, ran)
        row[which] = {key: told[key] for key in _SHOWN}
        row[which]["right_pixels"] = mean(mean(r["measured"]["per_scene"]) for r in ran.values())
    return row


if __name__ == "__main__":
    tyro.cli(main)
