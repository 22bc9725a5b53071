"""`eligo pixels train`: train a segmentation model guided by words."""

from typing import Annotated

from eligo.cli.console import print_outcome
from eligo.cli.pixels.flags import NO_FLAGS, Sam, report_unused, sam_changes
from eligo.pixels.config import PixelsTrainConfig


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
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.pixels.training.task import train_model

    changes = sam_changes(sam)
    config = config.replace(changes)
    report_unused(changes, config)
    print_outcome(train_model(config, resume=resume), json)
