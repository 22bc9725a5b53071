"""`eligo shots exam`: who chooses examples best for a model that learns from them?"""

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Literal

from benchmarks.shots.tables import exam_tables
from benchmarks.studies import print_end, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result, results
from eligo.cli.flags import Count
from eligo.io.files import write_text
from eligo.shots.learner.config import ExamConfig

_CONFIG = Path(__file__).with_name("study.yaml")


def run(
    config: Annotated[ExamConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/shots_exam"),
    part: Literal["all", "health", "teach", "train", "measure", "analytic"] = "all",
    workers: Count = 1,
    device: str = "auto",
    quick: bool = False,
    json: bool = False,
) -> None:
    """Teach, train and compare selectors on the embedded world; then on formulas.

    Started again, it makes only what is missing. Writes exam.json: health, tables with 95 %
    intervals, differences, every must as met or missed, and which answers were right.

    Args:
        out: The folder to write to.
        part: Go on up to this part, then stop; analytic: only the formulas, which need no learner.
        workers: Trainings at a time, each in a process of its own.
        device: Where the learner runs: auto, cpu or cuda.
        quick: See it run through on a CPU (the config exam_smoke), in a folder `quick` inside; the
            numbers mean nothing.
        json: Print one JSON document.
    """
    from benchmarks.shots.analytic import analytic_exam
    from eligo.pretrained.devices import resolve_device
    from eligo.report.provenance import provenance
    from eligo.shots.learner.exam import Exam
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, study_folder(out, quick)
    bars: dict[str, ProgressBar] = {}

    def tell(what: str, done: int, total: int) -> None:
        bars.setdefault(what, ProgressBar(what, total)).update(done, "")

    found: dict[str, Any] = {}
    where = resolve_device(device)
    if part != "analytic":
        found = Exam(config, out, where, tell).run(part, workers)
    if part in ("all", "analytic"):
        found |= analytic_exam(config, tell)
    written = None
    if part in ("all", "measure", "analytic"):
        head = provenance("eligo", str(where)) | {"quick": quick}
        document = head | {"config": config.model_dump(mode="json")} | found
        name = "analytic.json" if part == "analytic" else "exam.json"
        written = write_text(out / name, json_module.dumps(document, indent=1) + "\n")
    if json:
        print_result(found, json=True)
        return
    for table in exam_tables(found):
        results().print(table)
    plain = ("health", "musts", "formula musts", "taught", "selectors")
    print_result({name: found[name] for name in plain if name in found}, json=False)
    print_end(quick, written)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
