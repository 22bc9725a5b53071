"""`eligo scenes train-vlm`: train a tiny LLaVA on the embedded world."""

from eligo.cli import run_script
from eligo.cli.console import print_outcome
from eligo.scenes.vlm.config import VlmTrainConfig


def run(config: VlmTrainConfig, *, resume: bool = False, json: bool = False) -> None:
    """Train a tiny LLaVA; the model folder is written to <train.out>/<train.name>/model.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.scenes.vlm.train import train_vlm

    print_outcome(train_vlm(config, resume=resume), json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
