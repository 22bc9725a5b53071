"""`python -m benchmarks.shots.train_learner`: train the in-context learner of the study."""

from pathlib import Path
from typing import Annotated

from benchmarks.shots.config import LearnerConfig
from eligo.cli import run_script
from eligo.cli.console import print_outcome


def run(
    config: Annotated[LearnerConfig, str(Path(__file__).with_name("learner.yaml"))],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train the in-context learner; its model folder is <train.out>/<train.name>/model.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from benchmarks.shots.learner_task import train_learner

    print_outcome(train_learner(config, resume=resume), json)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
