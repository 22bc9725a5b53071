"""`eligo demo`: all four tasks on the shipped models, or your own questions on your own images.

Each task has a module here with `run(settings) -> Part`, which compares the shipped model with its
baselines on scenes that no model was trained on.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from eligo.cli.console import print_result, results
from eligo.config.bounds import Bounds
from eligo.errors import InputError

if TYPE_CHECKING:
    from eligo.cli.demo.part import Part

PARTS = ("tokens", "shots", "patches", "pixels")
SEED = 2026
"""Seed of the demo's scenes; training and studies use 0."""


def run(
    out: Path | None = None,
    images: Path | None = None,
    questions: Path | None = None,
    model: str | None = None,
    plan: str | None = None,
    seed: Annotated[int, Bounds(0, 2**31 - 1)] = SEED,
    device: str = "cpu",
    quick: bool = False,
    json: bool = False,
) -> None:
    """Compare all four tasks with their baselines on the shipped models, in a minute or two.

    Prints one table and writes index.html, a page to explore what was kept, and results.json. With
    --questions the first family answers your own questions on your own images instead.

    Args:
        out: The folder to write to; by default runs/demo, and with --questions runs/demo_questions.
        images: Your image folder; by default the folder of --questions.
        questions: Your questions: JSON lines (image, question, answers), VQA questions (.json), or
            text lines IMAGE<tab>QUESTION[<tab>ANSWER].
        model: With --questions, folder or hub name of the host; by default the shipped tiny LLaVA.
        plan: With --questions, a plan: a folder or the name of a shipped one.
        seed: Seed of the generated scenes.
        device: Where to run: auto, cpu or cuda.
        quick: Use a quarter of the data: faster, with wider intervals.
        json: Print one JSON document instead of a table.
    """
    given = {"--images": images, "--model": model, "--plan": plan}
    if questions is None and (
        extra := [name for name, value in given.items() if value is not None]
    ):
        raise InputError(f"{', '.join(extra)} can be given only with --questions FILE")
    from eligo.cli.demo import own, page
    from eligo.cli.demo.part import DemoSettings
    from eligo.cli.demo.table import table
    from eligo.pretrained.devices import resolve_device

    if out is None:  # do not overwrite the main demo's results
        out = Path("runs/demo" if questions is None else "runs/demo_questions")
    page.prepare(out)
    settings = DemoSettings(seed, str(resolve_device(device)), quick)
    if questions is not None:
        parts = [_timed(lambda: own.run(settings, images, questions, model, plan))]
    else:
        modules = (import_module(f"eligo.cli.demo.{name}") for name in PARTS)
        parts = [_timed(lambda module=module: module.run(settings)) for module in modules]
    first = () if questions is not None else page.photos()
    summary = page.write(out, parts, settings, first)
    if json:
        print_result(summary, json=True)
        return
    console = results()
    console.print(table(parts, console))
    written = str(out / page.RESULTS)
    if summary["page"]:
        written = f"{summary['page']} (open it in a browser), {written}"
    message = f"{summary['seconds']:.0f} s. Written: {written}"
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def _timed(run_part: Callable[[], "Part"]) -> "Part":
    began = time.perf_counter()
    part = run_part()
    return replace(part, seconds=time.perf_counter() - began)
