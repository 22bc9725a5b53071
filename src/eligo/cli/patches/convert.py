"""`eligo patches convert`: write a model folder from a LAPS or SEPS checkpoint, or from a run."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from eligo.cli.console import print_result
from eligo.cli.flags import Count, Positive, Share
from eligo.errors import InputError

Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT_OR_RUN")]


def run(
    source: Source,
    *,
    out: Path,
    vision: str | None = None,
    text: str | None = None,
    image_size: Count | None = None,
    image_mean: tuple[float, float, float] | None = None,
    image_std: tuple[Positive, Positive, Positive] | None = None,
    sparse_ratio: Share | None = None,
    aggr_ratio: Share | None = None,
    half: bool = False,
    json: bool = False,
) -> None:
    """Write a model folder from a checkpoint of LAPS or SEPS, or from a run (such as with --half).

    Args:
        source: A checkpoint file (.pth, .pth.tar), or the folder of an eligo run or model.
        out: The folder to write to.
        vision: Folder or hub name of the vision model that the training began with.
        text: Folder or hub name of its text model.
        image_size: Pixels per side; by default the vision model's.
        image_mean: Mean of each colour in its training; by default the vision model's.
        image_std: Deviation of each colour in its training; by default the vision model's.
        sparse_ratio: Share of the patches it keeps; by default the checkpoint's.
        aggr_ratio: Tokens per kept patch; by default the checkpoint's.
        half: Store in half precision.
        json: Print one JSON document.
    """
    import torch

    from eligo.patches.model.retrieval_model import RetrievalModel

    unused: list[str] = []
    if source.is_dir():
        model = RetrievalModel.from_pretrained(source)
    elif not source.is_file():
        raise InputError(
            f"{source}: there is no such file; expected a checkpoint (.pth, .pth.tar), or the "
            "folder of a run or model of eligo"
        )
    elif vision is None or text is None:
        raise InputError(
            f"{source}: a checkpoint does not name its encoders; give --vision and --text, the "
            "models that its training began with"
        )
    else:
        from eligo.patches.inference.convert import convert_checkpoint

        given: dict[str, Any] = {
            "encoders.image_size": image_size,
            "encoders.image_mean": image_mean,
            "encoders.image_std": image_std,
            "match.sparse_ratio": sparse_ratio,
            "match.aggr_ratio": aggr_ratio,
        }
        changes = {key: value for key, value in given.items() if value is not None}
        model, unused = convert_checkpoint(source, vision, text, changes)
    model.save_pretrained(out, dtype=torch.float16 if half else None)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print_result(
        {
            "model": out,
            "kind": model.config.match.kind,
            "parameters": sum(part.numel() for part in model.parameters()),
            "MB": round(size / 1e6, 2),
            "not used": unused,
        },
        json,
    )
