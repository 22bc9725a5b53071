"""`eligo patches train`: teach a model which text belongs to which image."""

from typing import Annotated

from eligo.cli.console import print_result
from eligo.patches.training.config import PatchesTrainConfig


def run(
    config: Annotated[PatchesTrainConfig, "patches/scenes_open"],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a retrieval model; the best one is written to <train.out>/<train.name>/model.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print the outcome as one JSON document.
    """
    from accelerate import PartialState

    from eligo.patches.training.task import train_model

    result = train_model(config, resume=resume)
    if PartialState().is_main_process:
        print_result(result, json)
