"""`eligo shots convert`: a trained selector or learner to ship, or weights of other programs."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import print_result
from eligo.errors import InputError

Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS_OR_RUN")]


def run(
    source: Source,
    *,
    out: Path,
    version: Literal["v1", "v2", "v3"] | None = None,
    half: bool = False,
    json: bool = False,
) -> None:
    """Write a model folder: from a run, say to halve it; or from weights of the guides' programs.

    A selector's folder holds the model alone, for PointerSelector.from_pretrained; its examples
    stay where they are. A learner is always stored in half precision.

    Args:
        source: The folder of a run, a selector, a model or a learner; or a file of weights (.pth,
            .pt), of which nothing but tensors is read.
        out: The folder to write to.
        version: Of what the file holds; it does not say so itself.
        half: Store in half precision.
        json: Print one JSON document.
    """
    if os.path.realpath(out) == os.path.realpath(source):
        raise InputError(f"--out: {out} is where it comes from; give another folder")
    learner = _learner(source)
    if learner is not None:
        from eligo.scenes.vlm import load_vlm, save_vlm

        model, processor = load_vlm(learner)
        save_vlm(model, processor, out)
    else:
        import torch

        model = _pointer(source, version)
        model.save_pretrained(out, dtype=torch.float16 if half else None)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    told = {
        "model": out,
        "kind": "learner" if learner is not None else model.config.version,
        "parameters": sum(part.numel() for part in model.parameters()),
        "MB": round(size / 1e6, 2),
    }
    print_result(told, json)


def _learner(source: Path) -> Path | None:
    """The model folder of a learner, if it is one or a run of one."""
    places = (source, source / "model")
    return next((place for place in places if (place / "processor_config.json").is_file()), None)


def _pointer(source: Path, version: str | None) -> Any:
    from eligo.shots.model.pretrained import import_pointer, load_pointer

    if source.is_dir():
        return load_pointer(source)
    if not source.is_file():
        raise InputError(f"there is no {source}; expected a file of weights, or a folder")
    if version is None:
        raise InputError(
            f"{source}: a file does not say what it holds; give --version v1, v2 or v3"
        )
    from eligo.shots.inference.learned_selector import NAMED

    return import_pointer(source, NAMED[version])
