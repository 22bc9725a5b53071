"""`eligo pixels train`: teach a model to segment rooms, guided by words."""

from typing import Annotated

from eligo.cli.console import print_result
from eligo.cli.pixels_flags import NO_FLAGS, Sam, sam_changes
from eligo.pixels.training.config import PixelsTrainConfig


def run(
    config: Annotated[PixelsTrainConfig, "pixels/scenes"],
    *,
    sam: Sam = NO_FLAGS,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a segmentation model; the best one is written to <train.out>/<train.name>/model.

    Args:
        sam: How pixels and words are compared.
        resume: Go on from the newest checkpoint in the run folder.
        json: Print the outcome as one JSON document.
    """
    from accelerate import PartialState

    from eligo.pixels.training.task import train_model

    result = train_model(config.replace(sam_changes(sam)), resume=resume)
    if PartialState().is_main_process:
        print_result(result, json)
