"""`eligo tokens train`: train merger and pruners for a frozen model."""

import logging
from typing import Annotated

from eligo.cli.console import print_outcome
from eligo.tokens.config import TokensTrainConfig

logger = logging.getLogger("eligo.tokens")


def run(
    config: Annotated[TokensTrainConfig, "tokens/default"],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a plan; the run folder, <train.out>/<train.name>, can be loaded as a plan.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from eligo.tokens.training.health import memory_guard
    from eligo.tokens.training.task import TokensTask, with_counted_steps
    from eligo.train import fit
    from eligo.train.processes import Processes

    processes = Processes()
    config = with_counted_steps(config)
    task = TokensTask(config)
    if processes.is_main:
        for line in task.describe():
            logger.info(line)
    with memory_guard("training"):
        result = fit(task, config.train, resume=resume)
    print_outcome(result, json)
