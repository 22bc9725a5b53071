"""`eligo tokens evaluate RUN_OR_PLAN`: accuracy with and without pruning, by question family."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import OutFile, compact_table, print_result, results, write_result_file
from eligo.cli.flags import Budget, Count
from eligo.errors import InputError

Source = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_PLAN")]
_SCENES = 600  # questions on scenes, unless told


def run(
    source: Source = None,
    *,
    model: str | None = None,
    data: Path | None = None,
    images: Path | None = None,
    method: str | None = None,
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
    """Answer held-out questions with all tokens and with those of the plan, through `generate`.

    A run is evaluated with its own host and data; a plan or a method on --data, or on generated
    scenes. With neither, the unpruned host alone.

    Args:
        source: Folder of a run of `eligo tokens train`, or of a saved plan; or a plan's name.
        model: Folder or hub name of the host, if it is not that of the run (or the shipped one).
        data: JSON lines with image, question, answer, and optionally family and split.
        images: Folder of the images; by default that of the lines.
        method: A training-free method instead of a plan.
        budgets: Vision tokens that the method keeps, or the first stage of the plan; or a share of
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
    from eligo.tokens.inference.controls import answer_controls
    from eligo.tokens.inference.evaluate import evaluate_plan
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.metrics import drop_by_family
    from eligo.train.progress import ProgressBar

    device = str(resolve_device(device))
    source, plan = _plan(source, method, budgets, layers)
    config = _config_of(source, data, images)
    settings: HostConfig = config.host
    if model is not None:
        settings = settings.replace({"model": model, "random": None})
    examples, train, instruction = _examples(config, split, questions, is_run=data is None)
    if controls and train is None:
        raise InputError("--controls: expected --data, or a run that was trained on files")
    host, processor = load_host(settings, device=device)
    options: dict[str, Any] = {"batch_size": batch_size, "instruction": instruction}
    with ProgressBar("questions", len(examples) * (3 if controls else 1)) as bar:
        answers = evaluate_plan(host, processor, plan, examples, on_progress=bar.update, **options)
        found: dict[str, list[float]] = {}
        if controls:
            found = answer_controls(
                host, processor, examples.rows, train or (), **options,
                on_progress=lambda done: bar.update(len(examples) + done),
            )  # fmt: skip
    families = [row.family for row in answers]
    pairs = [row.whole for row in answers], [row.pruned for row in answers]
    groups = [row.image for row in examples.rows] if hasattr(examples, "rows") else None
    rows = [asdict(row) for row in drop_by_family(families, *pairs, groups)]
    by_control = {name: drop_by_family(families, hits, hits) for name, hits in found.items()}
    for place, row in enumerate(rows):
        row["controls"] = {name: of[place].whole for name, of in by_control.items()}
    named = None if source is None else str(source)
    document: dict[str, Any] = {"plan": named or method, "split": split, "rows": rows}
    if json:
        print_result(document, json=True)
    else:
        results().print(_table(rows, pruned=bool(plan.stages)))
    lost = [asdict(answer) for answer in answers if answer.pruned < answer.whole]
    write_result_file(out, device, document | {"lost": lost})


def _plan(source: Path | None, method: str | None, budgets: Any, layers: Any) -> tuple[Any, Any]:
    """Return the folder of a plan or run, if one is given, and the plan."""
    from eligo.pretrained.load import find_model
    from eligo.tokens.inference.resolve import load_plan
    from eligo.tokens.plan import Plan
    from eligo.tokens.plan_files import PLAN

    if source is None and method is None:
        if budgets or layers:
            raise InputError("--budget, --layer: expected a plan or a --method with them")
        return None, Plan()
    found = None if source is None else find_model(source, PLAN)
    return found, load_plan(found, method, budgets, layers)


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


def _table(rows: list[dict[str, Any]], *, pruned: bool) -> Any:
    names = ["whole", "pruned", "drop"] if pruned else ["whole"]
    table = compact_table(
        "right answers (%), with all vision tokens" + (" and with the plan's" if pruned else ""),
        "drop: in points, with 95 % interval over images" if pruned else "",
        ("questions",),
        ("asked", *names, *(["interval"] if pruned else []), *rows[0]["controls"]),
    )
    for row in rows:
        percent = [f"{100 * row[name]:.1f}" for name in names]
        interval = f"{100 * row['drop_low']:.1f} to {100 * row['drop_high']:.1f}"
        table.add_row(
            row["family"], str(row["asked"]), *percent, *([interval] if pruned else []),
            *(f"{100 * right:.1f}" for right in row["controls"].values()),
            style="bold" if row["family"] == "all" else "",
        )  # fmt: skip
    return table
