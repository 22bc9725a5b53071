"""`eligo patches exam`: the embedded exam, arms against each other on generated scenes."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from benchmarks.patches.config import ExamConfig
from benchmarks.studies import print_end, reached_or_not, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.io.files import write_text

_CONFIG = Path(__file__).with_name("study.yaml")


def run(
    config: Annotated[ExamConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/patches_exam"),
    quick: bool = False,
    workers: Count = 1,
    json: bool = False,
) -> None:
    """Train and compare all arms; started again, it makes only what is missing.

    Writes a run folder per arm and seed, and exam.json: arms, paired differences with 95 %
    intervals (over scenes and seeds), and which bars are met.

    Args:
        out: The folder to write to.
        quick: See it run through on a CPU, in a folder `quick` inside; the numbers mean nothing.
        workers: Trainings at a time, each in a process of its own.
        json: Print one JSON document.
    """
    from benchmarks.patches.runs import Exam
    from eligo.report.provenance import provenance
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, study_folder(out, quick)
    total = len(config.arms) * len(config.seeds)
    exam = Exam(config, out)
    with ProgressBar("runs", total) as bar:
        found = exam.run(workers, bar.update)
    head: dict[str, Any] = provenance("eligo", str(exam.device)) | {"quick": quick}
    document = head | {"config": config.model_dump(mode="json")} | found
    written = write_text(out / "exam.json", json_module.dumps(document, indent=1) + "\n")
    print_result(document if json else _shown(found), json)
    if not json:
        print_end(quick, written)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Tables narrow enough to read."""
    columns = {
        "arm": "arm", "recall": "mean_recall", "i2t@1": "i2t_r1", "t2i@1": "t2i_r1",
        "points": "pointing_hit", "chance": "pointing_chance", "no leak": "leak_free",
        "s": "seconds",
    }  # fmt: skip
    arms = [{name: row.get(key) for name, key in columns.items()} for row in found["arms"]]
    return {
        "arms (recall: mean of the six recalls, points)": arms,
        "differences (points, 95 % interval)": found["comparisons"],
        "musts": [must | {"met": reached_or_not(must["met"])} for must in found["musts"]],
    }


if __name__ == "__main__":
    raise SystemExit(run_script(run))
