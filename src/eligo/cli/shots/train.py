"""`eligo shots train`: teach a pointer selector what a teacher found."""

from typing import Annotated

from eligo.cli.console import plain_data, print_outcome
from eligo.shots.config import ShotsTrainConfig


def run(
    config: Annotated[ShotsTrainConfig, "shots/v1"], *, resume: bool = False, json: bool = False
) -> None:
    """Train a selector; the run folder, <train.out>/<train.name>, is what `predict` takes.

    The flags of the guides' command are understood too: --model_version, --num_epochs,
    --batch_size, --lr, --weight_decay, --sample_num, --icds_origin, --scoring_method, and a bare
    folder.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from accelerate import PartialState

    from eligo.shots.training.train import held_out_of, train_selector

    result = train_selector(config, resume=resume)
    if not PartialState().is_main_process:
        return
    found = held_out_of(result.folder)
    if not json:
        found.pop("remark")  # has been said
    print_outcome(plain_data(result) | {"held_out": found}, json)
