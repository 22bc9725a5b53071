"""Every command, and where it lives. To add one, add its line here and its file beside this one.

The order is that of the help: first what to try first, then each family in the order of the work.

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
    "demo": Command("eligo.cli.demo:run", "see what learned selection does, in a minute or two"),
    "explore": Command(
        "eligo.cli.explorer.explore:run",
        "one page of what a run kept and dropped; --live to try it",
    ),
    "info": Command("eligo.cli.info:run", "versions, devices, extras and shipped models"),
    "shots embed": Command(
        "eligo.cli.shots.embed:run", "vectors of examples and queries, to choose by"
    ),
    "shots teach": Command(
        "eligo.cli.shots.teach:run", "find the examples that make the right answer likely"
    ),
    "shots train": Command(
        "eligo.cli.shots.train:run", "teach a pointer selector what the teacher found"
    ),
    "shots predict": Command(
        "eligo.cli.shots.predict:run", "choose examples for a question, and say why those"
    ),
    "shots evaluate": Command(
        "eligo.cli.shots.evaluate:run", "what a selector is worth, beside nearest and random"
    ),
    "shots convert": Command(
        "eligo.cli.shots.convert:run", "a selector or learner to ship; weights of other programs"
    ),
    "patches train": Command(
        "eligo.cli.patches.train:run", "teach a model which text belongs to which image"
    ),
    "patches index": Command(
        "eligo.cli.patches.index:run", "encode images or texts once, to search them"
    ),
    "patches search": Command(
        "eligo.cli.patches.search:run", "find images by text, or texts by image"
    ),
    "patches predict": Command(
        "eligo.cli.patches.predict:run", "score a text on an image, and show what it looked at"
    ),
    "patches evaluate": Command(
        "eligo.cli.patches.evaluate:run", "recall both ways, every image with every text"
    ),
    "patches convert": Command(
        "eligo.cli.patches.convert:run", "read a LAPS or SEPS checkpoint; halve a model"
    ),
    "tokens plan": Command(
        "eligo.cli.tokens.plan:run", "how many vision tokens to keep, and where, to save so much"
    ),
    "tokens train": Command(
        "eligo.cli.tokens.train:run", "teach merger and pruners inside a frozen model"
    ),
    "tokens predict": Command(
        "eligo.cli.tokens.predict:run", "answer a question from fewer tokens, and show which"
    ),
    "tokens evaluate": Command(
        "eligo.cli.tokens.evaluate:run", "what a trained pruner keeps of the accuracy, by family"
    ),
    "tokens sweep": Command(
        "eligo.cli.tokens.sweep:run", "accuracy over cost: methods and plans, budget by budget"
    ),
    "tokens bench": Command(
        "eligo.cli.tokens.bench:run", "what pruning is worth by the clock, beside the whole model"
    ),
    "tokens export": Command(
        "eligo.cli.tokens.export:run", "stage 1 as a module of its own, for serving engines"
    ),
    "pixels train": Command(
        "eligo.cli.pixels.train:run", "teach a model to segment rooms, guided by words"
    ),
    "pixels predict": Command(
        "eligo.cli.pixels.predict:run", "segment an image, and show which word guided which pixel"
    ),
    "pixels evaluate": Command(
        "eligo.cli.pixels.evaluate:run", "mean IoU and more, one row per kind of words"
    ),
    "pixels convert": Command(
        "eligo.cli.pixels.convert:run", "read official DFormerv2 weights; halve a model"
    ),
    "pixels export": Command("eligo.cli.pixels.export:run", "a model as ONNX"),
    "scenes show": Command("eligo.cli.scenes.show:run", "the embedded world on one page"),
    "scenes export": Command(
        "eligo.cli.scenes.export:run", "scenes as files, in the formats of VQAv2, NYU and others"
    ),
    "search": Command("eligo.cli.search:run", "search the hyper-parameters of a run"),
}

ABOUT = {
    "shots": "which examples enter the prompt?",
    "patches": "which image patches matter to this text?",
    "tokens": "which vision tokens survive inside the language model?",
    "pixels": "which words guide which pixel?",
    "scenes": "the embedded world, with questions, captions and labels",
}
"""What the commands that have verbs are about, in one line."""
