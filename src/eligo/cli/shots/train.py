"""`eligo shots train`: train a pointer selector on a teacher's records."""

from typing import Annotated

from eligo.cli.console import plain_data, print_message, print_outcome
from eligo.shots.config import DEFAULT, ShotsTrainConfig


def run(
    config: Annotated[ShotsTrainConfig, f"shots/{DEFAULT}"],
    *,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Train a selector; the run folder, <train.out>/<train.name>, is what `predict` takes.

    The flags of the published design's command work too: --model_version, --num_epochs,
    --batch_size, --lr, --weight_decay, --sample_num, --icds_origin, --scoring_method, and a bare
    folder.

    Args:
        resume: Continue from the newest checkpoint in the run folder.
        json: Print one JSON document.
    """
    from accelerate import PartialState

    from eligo.shots.training.train import read_held_out, train_selector

    result = train_selector(config, resume=resume)
    if not PartialState().is_main_process:
        return
    held_out = read_held_out(result.folder)
    if not json:
        held_out.pop("remark")  # it was logged
    print_outcome(plain_data(result) | {"held_out": held_out}, json)
    if held_out["kept"] != "learned":
        print_message(
            f"{result.folder}: the learned selector is no better, so the simple selector "
            f"{held_out['kept']} is kept instead"
        )
