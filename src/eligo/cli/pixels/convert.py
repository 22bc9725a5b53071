"""`eligo pixels convert`: official DFormerv2 weights, or a model of ours, as a model folder."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import print_result
from eligo.cli.pixels.flags import NO_FLAGS, Sam, open_segmenter, preset_changes, sam_changes

Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS_OR_RUN")]


def run(
    source: Source,
    *,
    out: Path,
    config: str = "nyu_s",
    drop: tuple[str, ...] = (),
    channel_order: Literal["rgb", "bgr"] | None = None,
    preset: int | None = None,
    sam: Sam = NO_FLAGS,
    half: bool = False,
    json: bool = False,
) -> None:
    """Write a model folder from official weights, or from a run (for example to halve its size).

    Weights of an encoder alone get a fresh head, to train from: --train.init_from OUT.

    Args:
        source: A file of weights (.pth, .safetensors), or the folder of a run or model of eligo.
        out: The folder to write to.
        config: Config for what the file does not determine (classes, words).
        drop: Prefixes of names to ignore, such as that of a classifier head.
        channel_order: Channel order that the weights expect; by default bgr for whole models of 40
            classes (NYU), else rgb.
        preset: How the model compares pixels and words, which the file does not determine: 0-6.
        sam: The same, by single settings.
        half: Store in half precision.
        json: Print one JSON document.
    """
    import torch

    if source.is_dir():
        segmenter = open_segmenter(source, "cpu", sam, preset)
    else:
        from eligo.config import find_config, load_config
        from eligo.pixels.config import PixelsTrainConfig
        from eligo.pixels.inference.convert import convert_official
        from eligo.pixels.training.task import with_classes, with_image_size

        base = load_config(PixelsTrainConfig, find_config("pixels", config))
        changes: dict[str, Any] = preset_changes(preset) | sam_changes(sam)
        if channel_order is not None:
            changes["inputs.channel_order"] = channel_order
        base = with_image_size(with_classes(base))
        segmenter = convert_official(source, base, drop=drop, changes=changes)
    segmenter.save_pretrained(out, dtype=torch.float16 if half else None)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    stored = segmenter.config
    result = {
        "model": out,
        "classes": stored.num_classes,
        "words": stored.sam.form if stored.guided else "none",
        "channel order": stored.inputs.channel_order,
        "parameters": sum(part.numel() for part in segmenter.model.parameters()),
        "MB": round(size / 1e6, 2),
    }
    print_result(result, json)
