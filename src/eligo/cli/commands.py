"""Every command, and where it lives. To add one, add its line here and its file beside this one.

The target is a typed function: its signature is the flags, its docstring the help. A parameter
`config: SomeConfig` makes it `COMMAND [CONFIG] [--a.b value]`; see `eligo.cli.call`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A function to import when it is called, and one line about it."""

    target: str
    help: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


COMMANDS = {
    "info": Command("eligo.cli.info:run", "versions, devices, extras and shipped models"),
    "demo": Command("eligo.cli.demo:run", "see the embedded world: a page of scenes, in seconds"),
    "scenes evaluate-vlm": Command(
        "eligo.cli.scenes_evaluate_vlm:run", "how often the tiny LLaVA answers right"
    ),
    "scenes export": Command(
        "eligo.cli.scenes_export:run", "scenes as files, in the formats of VQAv2, NYU and others"
    ),
    "scenes stats": Command(
        "eligo.cli.scenes_stats:run", "what a world is made of, and what blind answers reach"
    ),
    "scenes train-vlm": Command("eligo.cli.scenes_train_vlm:run", "train a tiny LLaVA"),
    "search": Command("eligo.cli.search:run", "search the hyper-parameters of a run"),
    "tokens plan": Command(
        "eligo.cli.tokens_plan:run", "how many vision tokens to keep, and where, to save so much"
    ),
    "tokens predict": Command(
        "eligo.cli.tokens_predict:run", "answer a question from fewer tokens, and show which"
    ),
    "tokens export": Command(
        "eligo.cli.tokens_export:run", "stage 1 as a module of its own, for serving engines"
    ),
    "tokens train": Command(
        "eligo.cli.tokens_train:run", "teach merger and pruners inside a frozen model"
    ),
    "tokens evaluate": Command(
        "eligo.cli.tokens_evaluate:run", "what a trained pruner keeps of the accuracy, by family"
    ),
    "tokens sweep": Command(
        "eligo.cli.tokens_sweep:run", "accuracy over cost: methods and plans, budget by budget"
    ),
}
