"""`eligo pixels evaluate`: how good a model is, one row for every kind of words."""

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import print_result
from eligo.cli.flags import Count, Index, Positive, Side
from eligo.cli.pixels.flags import NO_FLAGS, SamCheck, preset_changes, sam_changes
from eligo.cli.result_file import OutFile, write_result_file
from eligo.errors import InputError

Run = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN_OR_MODEL]")]
_ROOMS = "scenes"
"""The config that the model which comes with eligo was trained by."""


def run(
    source: Run = None,
    *,
    data: str | None = None,
    split: Literal["validation", "test"] = "test",
    multi_scale: bool = False,
    flip: bool = False,
    sliding: bool = False,
    scales: tuple[Positive, ...] = (),
    window: tuple[Side, Side] | None = None,
    root: Path | None = None,
    words: Path | None = None,
    batch_size: Count = 8,
    classes: bool = False,
    some_tags: bool = False,
    preset: Index | None = None,
    sam: SamCheck = NO_FLAGS,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Metrics of a run's best and last checkpoint on the data it was trained for, or of a model.

    Oracle words are the truth told to the model: never a result to compare with others'.

    Args:
        source: Folder of a run, checkpoint or model; by default the model that comes with eligo.
        data: A config of `eligo pixels train` whose data to take, for a folder that knows of none.
        split: Which images.
        multi_scale: Average over scales 0.5 to 1.5, mirrored too.
        flip: Average over the image and its mirror image.
        sliding: Look through a window of 480 x 640 that slides.
        scales: Other scales to average over.
        window: Another window: height and width.
        root: Folder of the data set, if it has moved.
        words: File of the words, if it has moved.
        batch_size: Images at a time.
        classes: Also the IoU of every class.
        some_tags: Also with true tags of which one thing's is left out, and with those of wall,
            floor and that one thing (generated rooms).
        preset: Refuse a model that compares pixels and words otherwise than this preset.
        sam: Refuse a model that compares pixels and words otherwise; what is not given is not
            checked.
        device: Where to run: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from eligo.pixels.data.batch import ImageSource
    from eligo.pixels.inference.evaluate import evaluate_rows
    from eligo.pixels.inference.modes import refuse_other_modes
    from eligo.pixels.inference.segmenter import SHIPPED, Segmenter, model_folder, stored_config
    from eligo.pixels.inference.some_tags import TOLD, SomeTags
    from eligo.pixels.inference.views import MULTI_SCALE, WINDOW, Views
    from eligo.pixels.training.task import build_source
    from eligo.pretrained.devices import resolve_device

    where = resolve_device(device)
    views = Views(
        scales or (MULTI_SCALE if multi_scale else (1.0,)),
        flip or multi_scale,
        window or (WINDOW if sliding else None),
    )
    places = _checkpoints(Path(source)) if source else {}
    if not places:
        places = {source or "shipped": model_folder(source)}
        data = data or (_ROOMS if source in (None, SHIPPED) else None)
    config = _training_config(next(iter(places.values())), data, root, words)
    for folder in places.values():
        refuse_other_modes(folder, stored_config(folder), preset_changes(preset) | sam_changes(sam))
    rows, images = [], None
    per_class: dict[str, dict[str, float]] = {}
    for name, folder in places.items():
        segmenter = Segmenter.from_pretrained(folder, device=where)
        images = images or build_source(config, segmenter.encoder, where)
        _same_classes(folder, segmenter.config.classes, images.classes)
        told: dict[str, ImageSource] = {"": images}
        if some_tags:
            told |= {f", {part}": SomeTags(images, part) for part in TOLD}
        measured = [
            (f"{row.words}{part}", row)
            for part, shown in told.items()
            for row in evaluate_rows(segmenter.model, shown, split, views, batch_size)
        ]
        for said, row in measured:
            rows.append({"checkpoint": name, **row.shown(), "words": said})
            column = said if len(places) == 1 else f"{name}, {said}"
            for label, iou in zip(images.classes, row.metrics.iou_per_class, strict=True):
                per_class.setdefault(label, {})[column] = iou
    found: dict[str, Any] = {"metrics": rows}
    if classes:
        found["iou"] = [{"class": label, **values} for label, values in per_class.items()]
    print_result(found if json else _shown(found), json)
    asked = {"split": split, "views": vars(views), "source": source}
    write_result_file(out, where, asked | found)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Tables narrow enough to read."""
    columns = {
        "": "checkpoint", "words": "words", "images": "images", "mIoU": "miou",
        "absent 0": "miou_reference", "pixels": "pixel_acc", "mean acc": "macc", "F1": "f1",
    }  # fmt: skip
    rows = [{name: row[key] for name, key in columns.items()} for row in found["metrics"]]
    shown: dict[str, Any] = {"percent; absent 0: mIoU with absent classes as 0": rows}
    if "iou" in found:
        shown["IoU of each class, percent"] = found["iou"]
    return shown


def _same_classes(folder: Path, mine: tuple[str, ...], theirs: tuple[str, ...]) -> None:
    """Refuse data whose labels number other classes than the model's."""
    if not mine or mine == theirs:
        return
    pairs = enumerate(zip_longest(mine, theirs))
    number, (own, other) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
    raise InputError(
        f"{folder}: its class {number} is {own or 'none'}, that of the data is {other or 'none'} "
        f"({len(mine)} classes and {len(theirs)}); expected the same names in the same order: give "
        "--data CONFIG with a data.classes file like that"
    )


def _checkpoints(source: Path) -> dict[str, Path]:
    """Best and last of a run, or one checkpoint by itself; none in what is neither."""
    found = {name: source / name for name in ("best", "last") if (source / name).is_dir()}
    if len({folder.resolve() for folder in found.values()}) == 1:
        return {" = ".join(found): next(iter(found.values()))}
    if not found and (source / "model.safetensors").is_file():
        return {source.name: source}
    return found


def _training_config(folder: Path, data: str | None, root: Path | None, words: Path | None) -> Any:
    """A checkpoint's own config, or, on other data, that of `data` with the model's settings."""
    from eligo.config import find_config, load_config
    from eligo.config.yaml import read_yaml
    from eligo.pixels.config import PixelsTrainConfig
    from eligo.pixels.inference.segmenter import plain_config, stored_config

    moved = {"data.root": root, "data.words": words}
    given: dict[str, Any] = {key: value for key, value in moved.items() if value is not None}
    if data is None:
        tree, _ = read_yaml(folder / "config.yaml")
        if "data" not in tree:
            raise InputError(
                f"{folder}: does not say what it was trained on; give the run, not <run>/model, or "
                "--data CONFIG, a config of `eligo pixels train` whose data to take"
            )
        return load_config(PixelsTrainConfig, folder / "config.yaml", given)
    model = plain_config(stored_config(folder)).model_dump(mode="json")
    return load_config(PixelsTrainConfig, find_config("pixels", data), model | given)
