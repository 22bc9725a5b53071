"""`eligo scenes train-vlm`: train a tiny LLaVA on the embedded world."""

from eligo.cli.console import print_result
from eligo.scenes.vlm.train import VlmTrainConfig, train_vlm


def run(config: VlmTrainConfig, *, resume: bool = False, json: bool = False) -> None:
    """Train a tiny LLaVA; the model folder is written to <train.out>/<train.name>/model.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print the outcome as one JSON document.
    """
    print_result(train_vlm(config, resume=resume), json)
