"""All commands, each with one line of help, in the order of `eligo --help`.

To add a command, add its line here and its file beside this one: `tokens plan` is the function
`run` in `eligo.cli.tokens.plan`. Its signature gives the flags, its docstring the help; a parameter
`config: SomeConfig` makes it `COMMAND [CONFIG] [--a.b value]` (see `eligo.cli.flags`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Command:
    """A function as `module:name`, imported when it is called, and one line of help."""

    target: str
    help: str

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(module), name)


_HELP = {
    "demo": "show what learned selection does, in a minute or two",
    "explore": "a page of what a run kept and dropped; --live: try it in a browser",
    "info": "versions, devices, extras and shipped models",
    "shots embed": "embed examples and queries, to select by",
    "shots teach": "find the examples that make the right answer more likely",
    "shots train": "train a selector on what `teach` found",
    "shots predict": "select examples for a question, or for a folder of queries",
    "shots evaluate": "accuracy with a selector, next to nearest and random examples",
    "shots convert": "make a model folder from a run or from other weights",
    "patches train": "train a model to match images and texts",
    "patches index": "encode images or texts once, to search them",
    "patches search": "find images by text, or texts by image",
    "patches export": "write an index for LanceDB or Qdrant",
    "patches predict": "score a text on an image and show the patches that count",
    "patches evaluate": "retrieval recall in both directions",
    "patches convert": "make a model folder from a run or a LAPS or SEPS checkpoint",
    "tokens build": "join a vision tower and a language model to a vision-language model",
    "tokens questions": "make questions on existence, colour and number from captions",
    "tokens finetune": "train such a model on photos with questions and captions",
    "tokens plan": "how many vision tokens to keep, and where, for a given saving",
    "tokens train": "train a merger and pruners inside a frozen model",
    "tokens predict": "answer a question with fewer tokens and show which were kept",
    "tokens evaluate": "accuracy of a trained pruner, by kind of question",
    "tokens sweep": "accuracy against cost, over methods, plans and budgets",
    "tokens bench": "measure the speed of a pruned model, next to the full one",
    "tokens export": "export stage 1 as a module of its own, for serving engines",
    "pixels words": "make a table of word vectors from any text encoder",
    "pixels train": "train a model to segment indoor images, guided by words",
    "pixels predict": "segment an image and show which word guided which pixel",
    "pixels evaluate": "mean IoU and more, one row per kind of words",
    "pixels convert": "make a model folder from a run or official DFormerv2 weights",
    "pixels export": "export a model to ONNX",
    "scenes show": "show generated scenes on one page",
    "scenes export": "write scenes as files, in the formats of VQAv2, NYU and others",
    "search": "search the hyper-parameters of a run",
}

COMMANDS = {
    name: Command(f"eligo.cli.{name.replace(' ', '.')}:run", help) for name, help in _HELP.items()
}
COMMANDS["explore"] = Command("eligo.cli.explorer.explore:run", _HELP["explore"])

ABOUT = {
    "shots": "which examples enter the prompt?",
    "patches": "which image patches match this text?",
    "tokens": "which vision tokens does the language model need?",
    "pixels": "which words guide which pixel?",
    "scenes": "generated images with questions, captions and labels",
}
"""One line about each command that has subcommands."""
