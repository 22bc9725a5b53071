"""`eligo pixels exam`: the embedded exam, what words, temperature and depth do."""

import json as json_module
import math
from pathlib import Path
from typing import Annotated, Any

from benchmarks.pixels.config import ExamConfig
from benchmarks.studies import print_end, study_folder
from eligo.cli import run_script
from eligo.cli.console import print_result
from eligo.cli.flags import Count
from eligo.config.bounds import Bounds
from eligo.io.files import write_text

_CONFIG = Path(__file__).with_name("study.yaml")


def run(
    config: Annotated[ExamConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/pixels_exam"),
    quick: bool = False,
    workers: Count = 1,
    minutes: Annotated[float, Bounds(0)] | None = None,
    json: bool = False,
) -> None:
    """Train and compare all arms; started again, it makes only what is missing.

    Writes a run folder per arm and seed, and exam.json: tables, paired differences with 95 %
    intervals (over scenes and seeds), and every must as met or missed.

    Args:
        out: The folder to write to.
        quick: See it run through on a CPU, in a folder `quick` inside; the numbers mean nothing.
        workers: Trainings at a time, each in a process of its own.
        minutes: Start no training after so many; the report says what is missing.
        json: Print one JSON document.
    """
    from accelerate import PartialState

    from benchmarks.pixels.runs import run_exam
    from eligo.report.provenance import provenance
    from eligo.train.progress import ProgressBar

    config, out = config.quick() if quick else config, study_folder(out, quick)
    with ProgressBar("runs", len(config.jobs())) as bar:
        limit = math.inf if minutes is None else minutes
        found = run_exam(config, out, workers=workers, minutes=limit, tell=bar.update)
    head: dict[str, Any] = provenance("eligo", str(PartialState().device)) | {"quick": quick}
    document = head | {"config": config.model_dump(mode="json")} | found
    written = write_text(out / "exam.json", json_module.dumps(document, indent=1) + "\n")
    print_result(document if json else _shown(found), json)
    if not json:
        print_end(quick, written)


_TITLES = {
    "twins": "twins (IoU; of_merged: share of the IoU with both names as one)",
    "noisy tags": "noisy tags (IoU)",
    "binding": "binding (share of objects named right, by number of phrases)",
    "depth": "depth (IoU of camouflaged things, by whose depth is given)",
    "differences": "differences (points, 95 % interval)",
    "musts": "musts",
    "missing": "missing",
}
_PARTS = ("twins", "binding", "depth")


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Tables narrow enough to read: sizes and single seeds are in exam.json."""
    left_out = {"parameters", "by_seed"}
    tables = {
        name: [{key: value for key, value in row.items() if key not in left_out} for row in rows]
        for name in _TITLES
        if (rows := found.get(name))
    }
    for part in _PARTS:
        for row in tables.get(part, ()):
            row["arm"] = row["arm"].removeprefix(f"{part}_")
    return {_TITLES[name]: rows for name, rows in tables.items()}


if __name__ == "__main__":
    raise SystemExit(run_script(run))
