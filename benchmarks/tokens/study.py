"""`eligo tokens exam`: what learned two-stage pruning is worth, at equal cost."""

import json as json_module
import logging
from pathlib import Path
from typing import Annotated, Any

from benchmarks.studies import print_end, reached_or_not, study_folder
from benchmarks.tokens.config import ExamConfig
from eligo.cli import run_script
from eligo.cli.console import compact_table, print_result, results
from eligo.errors import MissingExtraError
from eligo.io.files import write_text

logger = logging.getLogger("eligo.tokens")

_CONFIG = Path(__file__).with_name("study.yaml")


def run(
    config: Annotated[ExamConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/tokens_exam"),
    only: tuple[str, ...] = (),
    quick: bool = False,
    json: bool = False,
) -> None:
    """Train the plans, tune the baselines, ask both the same test questions, and judge.

    Started again, it makes only what is missing. Writes exam.json (arms, comparisons, bars, and
    which answers were right, question by question) and a plot.

    Args:
        out: The folder to write to.
        only: Train these (NAME_SEED) and stop: so several processes can share the work.
        quick: See it run through on a CPU, in a folder `quick` inside; the numbers mean nothing.
        json: Print one JSON document.
    """
    from accelerate import PartialState

    from benchmarks.tokens.runs import Exam
    from benchmarks.tokens.summary import Results, judge
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, study_folder(out, quick)
    device = PartialState().device  # where the loop trains
    assert device is not None
    exam = Exam(config, out, device)
    if only:
        exam.train(only=only)
        results().print(f"trained: {', '.join(only)}", highlight=False)
        return
    bars: dict[str, ProgressBar] = {}

    def tell(what: str, done: int, total: int) -> None:
        bars.setdefault(what, ProgressBar(what, total)).update(done, "")

    found = exam.run(tell)
    held = ("families", "right", "cost", "allowed")
    results_of_all = Results(**{name: found[name] for name in held}, resamples=config.resamples)
    verdict = judge(results_of_all)
    head = found["measured"] | {"quick": quick}
    document = (
        head
        | {"config": config.model_dump(mode="json"), "tuning": found["tuning"]}
        | verdict
        | results_of_all.packed()
    )
    written = write_text(out / "exam.json", json_module.dumps(document) + "\n")
    _plot(out, verdict)
    if json:
        print_result(verdict, json=True)
        return
    for table in _tables(verdict):
        results().print(table)
    for bar in verdict["bars"]:
        results().print(f"{reached_or_not(bar['met'])}: {bar['said']}", highlight=False)
    for shape in verdict["shapes"]:
        told = "seen" if shape["holds"] else "not seen"
        results().print(f"{told}: {shape['claim']} ({shape['said']})", highlight=False)
    print_end(quick, written)


def _plot(out: Path, verdict: dict[str, Any]) -> None:
    from benchmarks.tokens.plot import plot_exam

    try:
        plot_exam(verdict, out / "lost.png")
    except MissingExtraError as error:
        logger.info("no plot: %s", error)


def _tables(verdict: dict[str, Any]) -> list[Any]:
    overall = compact_table(
        "right answers (%) on the same test questions",
        "lost: points against none, with its 95 % interval · saved: FLOPs (%) of the language "
        "model, the selector counted · runs: trainings",
        ("arm",),
        ["kept", "saved", "runs", "right", "lost", "interval"],
    )
    names = list(verdict["arms"][0]["accuracy"])
    families = compact_table("by family (%)", "", ("arm",), names)
    for row in verdict["arms"]:
        right = row["accuracy"]
        saved = row.get("flops_reduction_with_selector")
        overall.add_row(
            row["arm"],
            ">".join(map(str, row.get("kept", [0]))),
            "-" if saved is None else f"{100 * saved:.1f}",
            str(row["runs"]),
            f"{right['all']:.1f}",
            f"{row['drop']:.1f}",
            f"{row['drop_low']:.1f} to {row['drop_high']:.1f}",
        )
        families.add_row(row["arm"], *(f"{right[name]:.1f}" for name in names))
    return [overall, families]


if __name__ == "__main__":
    raise SystemExit(run_script(run))
