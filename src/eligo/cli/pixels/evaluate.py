"""`eligo pixels evaluate`: segmentation metrics, one row for every provenance of words."""

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import OutFile, print_result, write_result_file
from eligo.cli.flags import Count, Index, Positive, Side
from eligo.cli.pixels.flags import NO_FLAGS, SamCheck, preset_changes, sam_changes
from eligo.errors import InputError

Run = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN_OR_MODEL]")]
_ROOMS = "scenes"  # the config of the data that the shipped model was trained on


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
    """Evaluate the best and last checkpoint of a run on its data, or a model.

    Rows with oracle words use the ground truth as input: do not compare them with other results.

    Args:
        source: Folder of a run, checkpoint or model; by default the model that comes with eligo.
        data: A config of `eligo pixels train` whose data (and depth format) to use, for a folder
            without data of its own.
        split: Which images.
        multi_scale: Average over scales 0.5 to 1.5, also mirrored.
        flip: Average over the image and its mirror image.
        sliding: Use a sliding window of 480 x 640.
        scales: Other scales to average over.
        window: Height and width of another sliding window.
        root: Folder of the data set, if it has moved.
        words: File of the words, if it has moved.
        batch_size: Images at a time.
        classes: Also the IoU of every class.
        some_tags: Also with the true tags of all but one thing, and with those of wall, floor and
            that one thing (generated rooms).
        preset: Require a model that compares pixels and words as this preset does.
        sam: Require a model with these settings; others are not checked.
        device: Where to run: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    from eligo.pixels.data.batch import ImageSource
    from eligo.pixels.data.scene_source import PARTIAL_TAGGINGS, PartialTags
    from eligo.pixels.inference import segmenter as models
    from eligo.pixels.inference.evaluate import evaluate_rows
    from eligo.pixels.inference.multi_scale import MULTI_SCALE, WINDOW, MultiScale
    from eligo.pixels.training.task import build_source
    from eligo.pretrained.devices import resolve_device

    where = resolve_device(device)
    passes = MultiScale(
        scales or (MULTI_SCALE if multi_scale else (1.0,)),
        flip or multi_scale,
        window or (WINDOW if sliding else None),
    )
    checkpoints = _checkpoints(Path(source)) if source else {}
    if not checkpoints:
        checkpoints = {source or "shipped": models.model_folder(source or models.SHIPPED)}
        data = data or (_ROOMS if source in (None, models.SHIPPED) else None)
    config = _training_config(next(iter(checkpoints.values())), data, root, words)
    wanted = preset_changes(preset) | sam_changes(sam)
    for folder in checkpoints.values():
        models.check_sam_settings(folder, models.stored_config(folder), wanted)
    rows, images = [], None
    per_class: dict[str, dict[str, float]] = {}
    for name, folder in checkpoints.items():
        segmenter = models.Segmenter.from_pretrained(folder, device=where)
        images = images or build_source(config, segmenter.encoder, where)
        _same_classes(folder, segmenter.config.classes, images.classes)
        sources: dict[str, ImageSource] = {"": images}
        if some_tags:
            sources |= {f", {kind}": PartialTags(images, kind) for kind in PARTIAL_TAGGINGS}
        for kind, tagged in sources.items():
            for row in evaluate_rows(segmenter.model, tagged, split, passes, batch_size):
                words_name = f"{row.words}{kind}"
                rows.append({"checkpoint": name, **row.summary(), "words": words_name})
                column = words_name if len(checkpoints) == 1 else f"{name}, {words_name}"
                for label, iou in zip(images.classes, row.metrics.iou_per_class, strict=True):
                    per_class.setdefault(label, {})[column] = iou
    result: dict[str, Any] = {"metrics": rows}
    if classes:
        result["iou"] = [{"class": label, **values} for label, values in per_class.items()]
    print_result(result if json else _with_short_names(result), json)
    settings = {"split": split, "views": vars(passes), "source": source}
    write_result_file(out, where, settings | result)


def _with_short_names(result: dict[str, Any]) -> dict[str, Any]:
    """The result with short column names, for printing."""
    columns = {
        "": "checkpoint", "words": "words", "images": "images", "mIoU": "miou",
        "absent 0": "miou_reference", "pixels": "pixel_acc", "mean acc": "macc", "F1": "f1",
    }  # fmt: skip
    rows = [{name: row[key] for name, key in columns.items()} for row in result["metrics"]]
    shown: dict[str, Any] = {"percent; absent 0: mIoU with absent classes as 0": rows}
    if "iou" in result:
        shown["IoU of each class, percent"] = result["iou"]
    return shown


def _same_classes(
    folder: Path, model_classes: tuple[str, ...], data_classes: tuple[str, ...]
) -> None:
    """Raise if the classes of the data are not those of the model."""
    if not model_classes or model_classes == data_classes:
        return
    pairs = enumerate(zip_longest(model_classes, data_classes))
    number, (own, other) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
    raise InputError(
        f"{folder}: its class {number} is {own or 'none'}, that of the data is {other or 'none'} "
        f"({len(model_classes)} classes and {len(data_classes)}); expected the same names in the "
        "same order: give --data CONFIG with such a data.classes file"
    )


def _checkpoints(source: Path) -> dict[str, Path]:
    """Best and last checkpoint of a run, or a single checkpoint; empty for other folders."""
    checkpoints = {name: source / name for name in ("best", "last") if (source / name).is_dir()}
    if len({folder.resolve() for folder in checkpoints.values()}) == 1:
        return {" = ".join(checkpoints): next(iter(checkpoints.values()))}
    if not checkpoints and (source / "model.safetensors").is_file():
        return {source.name: source}
    return checkpoints


def _training_config(folder: Path, data: str | None, root: Path | None, words: Path | None) -> Any:
    """The config of a checkpoint, or that of `data` with the settings of the model.

    Depth format and scale are taken from the config of the data, unless the model was trained
    without depth.
    """
    from eligo.config import find_config, load_config, read_layer
    from eligo.config.yaml import read_yaml
    from eligo.pixels.config import PixelsTrainConfig
    from eligo.pixels.inference.segmenter import plain_config, stored_config

    moved = {"data.root": root, "data.words": words}
    given: dict[str, Any] = {key: value for key, value in moved.items() if value is not None}
    if data is None:
        tree, _ = read_yaml(folder / "config.yaml")
        if "data" not in tree:
            raise InputError(
                f"{folder}: does not store its training data; give the run, not <run>/model, or "
                "--data CONFIG, a config of `eligo pixels train` whose data to use"
            )
        return load_config(PixelsTrainConfig, folder / "config.yaml", given)
    stored = plain_config(stored_config(folder))
    source = find_config("pixels", data)
    inputs = read_layer(source).tree.get("inputs") or {}
    if stored.inputs.depth != "none" and isinstance(inputs, dict):
        depth = {key: inputs[key] for key in ("depth", "depth_scale") if key in inputs}
        stored = stored.replace({f"inputs.{key}": value for key, value in depth.items()})
    return load_config(PixelsTrainConfig, source, stored.model_dump(mode="json") | given)
