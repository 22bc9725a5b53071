"""`eligo tokens finetune`: train projector and language model on photos."""

import logging
from typing import Annotated

from eligo.cli.console import plain_data, print_outcome
from eligo.tokens.config import FinetuneConfig

logger = logging.getLogger("eligo.tokens")


def run(
    config: Annotated[FinetuneConfig, "tokens/finetune"],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a vision-language model on photos; write the whole model and the trained parts.

    `<train.out>/<train.name>/host` is a model for `predict` and `train`; `parts` beside it is the
    trained part alone, a tenth of its size.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from accelerate import PartialState

    from eligo.tokens.model.assemble import save_host
    from eligo.tokens.training.finetune import FinetuneTask, save_parts
    from eligo.train import fit

    task: FinetuneTask = config.build()
    config = task.settings
    is_main = PartialState().is_main_process
    if is_main:
        for line in task.describe():
            logger.info(line)
    result = fit(task, config.train, resume=resume)
    if not is_main:
        return
    task.load(result.chosen)
    save_parts(result.folder / "parts", task.modules, config.lora)
    save_host(task.merge(), task.processor, result.folder / "host")
    written = {"host": result.folder / "host", "parts": result.folder / "parts"}
    print_outcome(plain_data(result) | written, json)
