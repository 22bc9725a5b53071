"""`eligo tokens evaluate RUN_OR_PLAN`: accuracy with and without pruning, by question family."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import OutFile, compact_table, print_result, results, write_result_file
from eligo.cli.flags import Count
from eligo.errors import InputError

Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_PLAN")]


def run(
    source: Source,
    *,
    model: str | None = None,
    split: Literal["validation", "test"] = "test",
    questions: Count = 600,
    batch_size: Count = 8,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Answer held-out questions with all tokens and with those of the plan, through `generate`.

    A run is evaluated with its own host and data; a plan alone on generated scenes.

    Args:
        source: Folder of a run of `eligo tokens train`, or of a saved plan; or a plan's name.
        model: Folder or hub name of the host, if it is not that of the run (or the shipped one).
        split: Split of the scenes; files have a validation split only.
        questions: Maximum number of questions.
        batch_size: Prompts in one call of `generate`.
        device: Where to run: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from eligo.pretrained.devices import resolve_device
    from eligo.pretrained.load import find_model
    from eligo.tokens.inference.evaluate import evaluate_plan
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.metrics import drop_by_family
    from eligo.tokens.plan import Plan
    from eligo.tokens.plan_files import PLAN
    from eligo.train.progress import ProgressBar

    device = str(resolve_device(device))
    source = find_model(source, PLAN)
    config = _config_of(source)
    plan = Plan.load(source)
    settings = config.host
    if model is not None:
        settings = settings.replace({"model": model, "random": None})
    host, processor = load_host(settings, device=device)
    examples, instruction = _examples(config, split, questions)
    with ProgressBar("questions", len(examples)) as bar:
        answers = evaluate_plan(
            host, processor, plan, examples,
            batch_size=batch_size, instruction=instruction, on_progress=bar.update,
        )  # fmt: skip
    columns = ([getattr(row, name) for row in answers] for name in ("family", "whole", "pruned"))
    rows = [asdict(row) for row in drop_by_family(*columns)]
    document: dict[str, Any] = {"plan": str(source), "split": split, "rows": rows}
    if json:
        print_result(document, json=True)
    else:
        results().print(_table(rows))
    lost = [asdict(answer) for answer in answers if answer.pruned < answer.whole]
    write_result_file(out, device, document | {"lost": lost})


def _config_of(source: Path) -> Any:
    """Return the config of a run, or the default one for a plan alone."""
    from eligo.config import load_config
    from eligo.tokens.config import TokensTrainConfig

    path = source / "config.yaml"
    return load_config(TokensTrainConfig, path if path.is_file() else None)


def _examples(config: Any, split: Any, questions: int) -> tuple[Any, str]:
    from eligo.tokens.config import ScenesDataConfig
    from eligo.tokens.data.examples import SceneExamples
    from eligo.tokens.data.file_source import read_examples

    if isinstance(config.data, ScenesDataConfig):
        return SceneExamples(config.data.scenes, split, questions), ""
    if split != "validation":
        raise InputError(
            "--split: the run was trained on files, which have no test split here; give "
            "--split validation"
        )
    data = config.data.replace({"validation": questions})
    return read_examples(data, to_learn=False)[1], data.instruction


def _table(rows: list[dict[str, Any]]) -> Any:
    table = compact_table(
        "right answers (%), with all vision tokens and with the plan's",
        "drop: in points, with 95 % interval over questions",
        ("questions",),
        ("asked", "whole", "pruned", "drop", "interval"),
    )
    for row in rows:
        percent = {name: f"{100 * row[name]:.1f}" for name in ("whole", "pruned", "drop")}
        interval = f"{100 * row['drop_low']:.1f} to {100 * row['drop_high']:.1f}"
        table.add_row(
            row["family"], str(row["asked"]), percent["whole"], percent["pruned"],
            percent["drop"], interval, style="bold" if row["family"] == "all" else "",
        )  # fmt: skip
    return table
