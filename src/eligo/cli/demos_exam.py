"""`eligo demos exam`: who chooses examples best for a model that learns from them?"""

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Literal

from eligo.cli.console import print_result, results
from eligo.cli.demos_exam_tables import exam_tables
from eligo.cli.exams import exam_folder, say_end
from eligo.cli.flags import Count
from eligo.demos.exam.config import ExamConfig
from eligo.files import write_text


def run(
    config: Annotated[ExamConfig, "demos/exam"],
    *,
    out: Path = Path("runs/demos_exam"),
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
    from eligo.demos.exam.analytic import analytic_exam
    from eligo.demos.exam.exam import Exam
    from eligo.devices import resolve_device
    from eligo.report.provenance import provenance
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, exam_folder(out, quick)
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
    say_end(quick, written)
