"""`python -m benchmarks.shots.study`: which selector picks the best examples for a learner?"""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

from benchmarks.shots.config import Part, StudyConfig
from benchmarks.studies import print_end, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result, results
from eligo.cli.flags import Count
from eligo.io.files import write_text


def run(
    config: Annotated[StudyConfig, str(Path(__file__).with_name("study.yaml"))],
    *,
    out: Path = Path("runs/shots_study"),
    part: Part = "all",
    workers: Count = 1,
    device: str = "auto",
    quick: bool = False,
    json: bool = False,
) -> None:
    """Teach, train and compare selectors on generated lexicons, then on formulas.

    A restart makes only what is missing. Writes study.json: health, tables with 95 % intervals,
    differences, targets, the figures that the published designs expect beside ours, and which
    answers were correct.

    Args:
        out: The folder to write to.
        part: Stop after this part; analytic: only the formulas, which need no learner.
        workers: Parallel trainings, each in a process of its own.
        device: Device of the learner: auto, cpu or cuda.
        quick: Run a small version on a CPU (study_smoke.yaml), in a folder `quick` inside; the
            numbers mean nothing.
        json: Print one JSON document.
    """
    from benchmarks.shots.analytic import analytic_study
    from benchmarks.shots.runs import Study
    from benchmarks.shots.summary import study_tables
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, study_folder(out, quick)
    bars: dict[str, ProgressBar] = {}

    def report(stage: str, done: int, total: int) -> None:
        bars.setdefault(stage, ProgressBar(stage, total)).update(done, "")

    result: dict[str, Any] = {}
    where = resolve_device(device)
    if part != "analytic":
        result = Study(config, out, where, report).run(part, workers)
    if part in ("all", "analytic"):
        result |= analytic_study(config, report)
    written = None
    if part in ("all", "measure", "analytic"):
        head = provenance(str(where)) | {"quick": quick}
        document = head | {"config": config.model_dump(mode="json")} | result
        name = "analytic.json" if part == "analytic" else "study.json"
        written = write_text(out / name, json_module.dumps(document, indent=1) + "\n")
    if json:
        print_result(result, json=True)
        return
    for table in study_tables(result):
        results().print(table)
    shown = (
        "health", "labels", "near best", "targets", "formula targets", "taught", "selectors",
    )  # fmt: skip
    print_result({name: result[name] for name in shown if name in result}, json=False)
    print_end(quick, written)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
