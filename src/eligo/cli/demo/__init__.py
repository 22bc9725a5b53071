"""`eligo demo`: the main job on the embedded default, or the part of it that fits one's own files.

A part is a file beside this one with `run(work) -> Part`; each measures one family's shipped model
beside its baselines, on scenes that nobody trained on.
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
"""Of the demo's scenes: trainings and exams have 0."""


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
        seed: Another one gives other scenes.
        device: Where to run: auto, cpu or cuda.
        quick: A quarter of everything: wide intervals, but quickly.
        json: Print one JSON document instead of a table.
    """
    given = {"--images": images, "--model": model, "--plan": plan}
    if questions is None and (
        extra := [name for name, value in given.items() if value is not None]
    ):
        raise InputError(f"{', '.join(extra)} can be given only with --questions FILE")
    from eligo.cli.demo import own, page
    from eligo.cli.demo.part import Work
    from eligo.cli.demo.table import table
    from eligo.pretrained.devices import resolve_device

    if out is None:  # one's own questions leave the main demo's results alone
        out = Path("runs/demo" if questions is None else "runs/demo_questions")
    page.prepare(out)
    work = Work(seed, str(resolve_device(device)), quick)
    if questions is not None:
        parts = [_timed(lambda: own.run(work, images, questions, model, plan))]
    else:
        modules = (import_module(f"eligo.cli.demo.{name}") for name in PARTS)
        parts = [_timed(lambda module=module: module.run(work)) for module in modules]
    found = page.write(out, parts, work)
    if json:
        print_result(found, json=True)
        return
    console = results()
    console.print(table(parts, console))
    written = [*([f"{found['page']} (open it in a browser)"] if found["page"] else []),
               str(out / page.RESULTS)]  # fmt: skip
    told = f"{found['seconds']:.0f} s. Written: {', '.join(written)}"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _timed(make: Callable[[], "Part"]) -> "Part":
    began = time.perf_counter()
    part = make()
    return replace(part, seconds=time.perf_counter() - began)
