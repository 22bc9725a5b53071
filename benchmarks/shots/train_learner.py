"""`eligo shots train-learner`: the exam's model, which learns words from examples."""

from pathlib import Path
from typing import Annotated

from eligo.cli import run_script
from eligo.cli.console import print_outcome
from eligo.shots.learner.learner_config import LearnerConfig

_CONFIG = Path(__file__).with_name("learner.yaml")


def run(
    config: Annotated[LearnerConfig, str(_CONFIG)], *, resume: bool = False, json: bool = False
) -> None:
    """Train the in-context learner; its model folder is <train.out>/<train.name>/model.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.shots.learner.learner import train_learner

    print_outcome(train_learner(config, resume=resume), json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
