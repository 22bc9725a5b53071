"""`eligo demos train-learner`: the exam's model, which learns words from examples."""

from typing import Annotated

from eligo.cli.console import print_outcome
from eligo.demos.exam.learner_config import LearnerConfig


def run(
    config: Annotated[LearnerConfig, "demos/learner"], *, resume: bool = False, json: bool = False
) -> None:
    """Train the in-context learner; its model folder is <train.out>/<train.name>/model.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.demos.exam.learner import train_learner

    print_outcome(train_learner(config, resume=resume), json)
