"""`eligo patches train`: train a retrieval model."""

from typing import Annotated

from eligo.cli.console import print_outcome
from eligo.patches.config import PatchesTrainConfig


def run(
    config: Annotated[PatchesTrainConfig, "patches/scenes_open"],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a retrieval model; the best one is written to <train.out>/<train.name>/model.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.patches.training.task import train_model

    print_outcome(train_model(config, resume=resume), json)
