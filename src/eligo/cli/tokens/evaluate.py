"""`eligo tokens evaluate`: accuracy with all tokens and with fewer, by family of questions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import (
    OutFile,
    compact_table,
    print_result,
    print_text,
    results,
    write_result_file,
)
from eligo.cli.flags import Budget, Count
from eligo.errors import InputError
from eligo.tokens.metrics import ALL, drop_by_family

Source = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_PLAN")]
_SCENES = 600  # questions on scenes, unless told
_MAX_NEW_TOKENS = 10


def run(
    source: Source = None,
    *,
    model: str | None = None,
    data: Path | None = None,
    images: Path | None = None,
    methods: Annotated[tuple[str, ...], tyro.conf.arg(name="method")] = (),
    budgets: Annotated[tuple[Budget, ...], tyro.conf.arg(name="budget")] = (),
    layers: Annotated[tuple[Count, ...], tyro.conf.arg(name="layer")] = (),
    split: Literal["validation", "test"] = "test",
    questions: Count | None = None,
    controls: bool = False,
    batch_size: Count = 8,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Answer held-out questions with all tokens and with those of a plan or of some methods.

    A run is evaluated with its own host and data; a plan or methods on --data, or on generated
    scenes. With none of them, the unpruned host alone.

    Args:
        source: Folder of a run of `eligo tokens train`, or of a saved plan; or a plan's name.
        model: Folder or hub name of the host, if it is not that of the run (or the shipped one).
        data: JSON lines with image, question, answer, and optionally family and split.
        images: Folder of the images; by default that of the lines.
        methods: Training-free methods to compare, instead of a plan or beside it.
        budgets: Vision tokens that a method keeps, or the first stage of the plan; or a share of
            them, such as 0.25.
        layers: Layers at which a method inside the language model cuts; by default layer 2.
        split: Split of the scenes, or of the lines that name one.
        questions: Maximum number of questions; by default all of a file, 600 on scenes.
        controls: Also answer without the image, with another one, and from the question only.
        batch_size: Prompts in one call of `generate`.
        device: Where to run: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from eligo.pretrained.devices import resolve_device
    from eligo.tokens.config import HostConfig
    from eligo.tokens.cost.shapes import can_count
    from eligo.tokens.inference.controls import answer_controls
    from eligo.tokens.inference.evaluate import WHOLE, answer_questions
    from eligo.tokens.inference.load import load_host
    from eligo.train.progress import ProgressBar

    device = str(resolve_device(device))
    source, plans = _plans(source, methods, budgets, layers)
    config = _config_of(source, data, images)
    settings: HostConfig = config.host
    if model is not None:
        settings = settings.replace({"model": model, "random": None})
    examples, train, instruction = _examples(config, split, questions, is_run=data is None)
    if controls and train is None:
        raise InputError("--controls: expected --data, or a run that was trained on files")
    host, processor = load_host(settings, device=device)
    options: dict[str, Any] = {
        "batch_size": batch_size, "instruction": instruction, "max_new_tokens": _MAX_NEW_TOKENS,
    }  # fmt: skip
    with ProgressBar("questions", len(examples) * (3 if controls else 1)) as bar:
        answers = answer_questions(
            host, processor, examples, {WHOLE: None, **plans}, **options,
            with_cost=can_count(host), on_progress=bar.update,
        )  # fmt: skip
        by_control: dict[str, list[float]] = {}
        if controls:
            by_control = answer_controls(
                host, processor, examples.rows, train or (), **options,
                on_progress=lambda done: bar.update(len(examples) + done),
            )  # fmt: skip
    groups = [row.image for row in examples.rows] if hasattr(examples, "rows") else None
    whole, rows = answers.accuracy[WHOLE], []
    control_rows = {n: drop_by_family(answers.families, x, x) for n, x in by_control.items()}
    for name in plans or (WHOLE,):
        found = drop_by_family(answers.families, whole, answers.accuracy[name], groups)
        for place, row in enumerate(found):
            beside = {control: of[place].whole for control, of in control_rows.items()}
            rows.append({"variant": name, **asdict(row), "controls": beside})
    document: dict[str, Any] = {
        "plan": None if source is None else str(source), "methods": list(methods),
        "budgets": list(budgets), "split": split, "rows": rows,
        "cost": {name: answers.cost[name] for name in plans if name in answers.cost},
    }  # fmt: skip
    if json:
        print_result(document, json=True)
    else:
        _print(rows, tuple(plans), document["cost"])
    lost = [
        {"variant": name, **asdict(answer)}
        for name in plans
        for answer in answers.paired(name)
        if answer.pruned < answer.whole
    ]
    write_result_file(out, device, document | {"lost": lost})


def _plans(
    source: Path | None, methods: Sequence[str], budgets: Any, layers: Any
) -> tuple[Path | None, dict[str, Any]]:
    """Return the folder of a plan or run, if one is given, and what is compared, by name."""
    from eligo.pretrained.load import find_model
    from eligo.tokens.inference.resolve import load_plan
    from eligo.tokens.plan_files import PLAN

    if source is None and not methods and (budgets or layers):
        raise InputError("--budget, --layer: expected a plan or a --method with them")
    others = (name for name in methods if name != "none")  # all tokens are always compared
    plans = {name: load_plan(None, name, budgets, layers) for name in others}
    if source is None:
        return None, plans
    found = find_model(source, PLAN)
    of_plan = () if methods else layers  # those of the methods beside it
    return found, {str(source): load_plan(found, None, budgets, of_plan), **plans}


def _config_of(source: Path | None, data: Path | None, images: Path | None) -> Any:
    """Return the config of a run, or the default one; `data` replaces its data."""
    from eligo.config import load_config
    from eligo.tokens.config import LinesDataConfig, TokensTrainConfig

    path = None if source is None else source / "config.yaml"
    config = load_config(TokensTrainConfig, path if path and path.is_file() else None)
    if data is None:
        if images is not None:
            raise InputError("--images: expected --data, the questions on them")
        return config
    lines = LinesDataConfig(train_lines=data, validation_lines=data, images=images)
    return config.model_copy(update={"data": lines})


def _examples(
    config: Any, split: Literal["validation", "test"], questions: int | None, *, is_run: bool
) -> tuple[Any, Any, str]:
    """Return the examples, the training questions of a file (None: scenes), the instruction."""
    from eligo.tokens.config import LinesDataConfig, ScenesDataConfig
    from eligo.tokens.data.examples import FileExamples, SceneExamples
    from eligo.tokens.data.file_source import read_folder
    from eligo.vqa import read_vqa_lines

    data = config.data
    if isinstance(data, ScenesDataConfig):
        return SceneExamples(data.scenes, split, questions or _SCENES), None, ""
    if isinstance(data, LinesDataConfig):
        of = "val" if split == "validation" else split
        rows = read_vqa_lines(data.validation_lines, data.images, split=of)
        if is_run and of == "test" and any(row.split is None for row in rows):
            raise InputError(
                f"--split: lines of {data.validation_lines} name no split; give --split "
                "validation, or the test questions with --data"
            )
        train = read_vqa_lines(data.train_lines, data.images, need_images=False)
        train = [row for row in train if row.split == "train"]
    elif split == "validation":
        rows = read_folder(data.folder, data.validation_subtype)
        train = read_folder(data.folder, data.train_subtype)
    else:
        raise InputError(
            "--split: a folder in the format of VQAv2 has no test split; give --split validation"
        )
    return FileExamples(rows[:questions]), train, data.instruction


def _print(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], cost: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print a table of plans and methods and, if there are several families, one by family."""
    overall = [row for row in rows if row["family"] == ALL]
    families = list(dict.fromkeys(row["family"] for row in rows if row["family"] != ALL))
    first, blank = overall[0], ("", "") if names else ()
    table = compact_table(
        "right answers (%)",
        f"of {first['asked']} questions" + (
            " · kept: vision tokens, after each stage · saved: FLOPs of the language model, the "
            "selector counted (%) · lost: points, with 95 % interval over images" if names else ""
        ),
        ("tokens",),
        ("kept", "saved", "right", "lost", "interval") if names else ("right",),
    )  # fmt: skip
    table.add_row("all", *blank, _percent(first["whole"]))
    for row in overall if names else ():
        spent = cost.get(row["variant"])
        low, high = _percent(row["drop_low"]), _percent(row["drop_high"])
        table.add_row(
            row["variant"],
            "" if spent is None else ">".join(map(str, spent["kept"])),
            "" if spent is None else _percent(spent["flops_reduction_with_selector"]),
            _percent(row["pruned"]), _percent(row["drop"]),
            "no difference" if row["drop_low"] == row["drop_high"] == 0 else f"{low} to {high}",
        )  # fmt: skip
    for name, right in first["controls"].items():
        table.add_row(name, *blank, _percent(right))
    results().print(table)
    if families:
        results().print(_by_family(rows, names, families))
    if first["whole"] == 0:
        print_text("the model answers nothing right with all tokens: this compares nothing")


def _by_family(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], families: Sequence[str]
) -> Any:
    table = compact_table("by family of questions (%)", "", ("tokens",), families)
    found = {(row["variant"], row["family"]): row for row in rows}
    first = [found[rows[0]["variant"], family] for family in families]
    table.add_row("questions", *(str(row["asked"]) for row in first))
    table.add_row("all", *(_percent(row["whole"]) for row in first))
    for name in names:
        table.add_row(name, *(_percent(found[name, family]["pruned"]) for family in families))
    for name in first[0]["controls"]:
        table.add_row(name, *(_percent(row["controls"][name]) for row in first))
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
