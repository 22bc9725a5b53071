"""The `train` verb of every family: `eligo <family> train CONFIG [--a.b value] [--resume]`.

The config's class is found by its `task:`; it has a field `train` (a `TrainConfig`) and a method
`build()` that returns the `Task` to fit.
"""

from eligo.cli.console import print_result
from eligo.config import Config
from eligo.errors import ConfigError


def run(config: Config, *, resume: bool = False, json: bool = False) -> None:
    """Train what a config describes; the run folder is written to <train.out>/<train.name>.

    Args:
        resume: Go on from the newest checkpoint in the run folder.
        json: Print the outcome as one JSON document.
    """
    build, settings = getattr(config, "build", None), getattr(config, "train", None)
    if build is None or settings is None:
        raise ConfigError(
            f"{type(config).__name__} cannot be trained: it needs a field train and a method build"
        )
    from accelerate import PartialState

    from eligo.train import fit

    result = fit(build(), settings, resume=resume)
    if PartialState().is_main_process:  # once, however many processes trained
        print_result(result, json)
