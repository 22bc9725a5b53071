"""`eligo shots convert`: make a model folder of a run, or of weights of other programs."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import print_result, print_text
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
    """Write a model folder from a run, or from weights of the published designs' programs.

    A selector's folder holds the model alone, for PointerSelector.from_pretrained, and for predict
    and evaluate with --embedded; its examples stay where they are. A learner is always stored in
    half precision.

    Args:
        source: The folder of a run, a selector, a model or a learner; or a file of weights (.pth,
            .pt), of which only tensors are read.
        out: The folder to write to.
        version: Version of the model in a file of weights, which does not name it.
        half: Store in half precision.
        json: Print one JSON document.
    """
    if os.path.realpath(out) == os.path.realpath(source):
        raise InputError(f"--out: {out} is the source; give another folder")
    learner = _find_learner(source)
    if learner is not None:
        from eligo.scenes.vlm import load_vlm, save_vlm

        model, processor = load_vlm(learner)
        save_vlm(model, processor, out)
    else:
        import torch

        model = _load_pointer(source, version)
        model.save_pretrained(out, dtype=torch.float16 if half else None)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    summary = {
        "model": out,
        "kind": "learner" if learner is not None else model.config.version,
        "parameters": sum(part.numel() for part in model.parameters()),
        "MB": round(size / 1e6, 2),
    }
    print_result(summary, json)
    if learner is None and not json:
        print_text(
            f"to use it: eligo shots predict --selector {out} --embedded FOLDER (of `eligo shots "
            "embed`, with the examples to choose from)"
        )


def _find_learner(source: Path) -> Path | None:
    """Return the model folder of a learner, or of a run of one."""
    paths = (source, source / "model")
    return next((path for path in paths if (path / "processor_config.json").is_file()), None)


def _load_pointer(source: Path, version: str | None) -> Any:
    from eligo.shots.config import NAMED
    from eligo.shots.model.pretrained import import_pointer, load_pointer

    if source.is_dir():
        return load_pointer(source)
    if not source.is_file():
        raise InputError(f"there is no {source}; expected a file of weights, or a folder")
    if version is None:
        raise InputError(f"{source}: a file does not name its version; give --version v1, v2 or v3")
    return import_pointer(source, NAMED[version])
