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
        "eligo.cli.explore:run", "one page of what a run kept and dropped; --live to try it"
    ),
    "info": Command("eligo.cli.info:run", "versions, devices, extras and shipped models"),
    "demos embed": Command(
        "eligo.cli.demos_embed:run", "vectors of examples and queries, to choose by"
    ),
    "demos teach": Command(
        "eligo.cli.demos_teach:run", "find the examples that make the right answer likely"
    ),
    "demos train": Command(
        "eligo.cli.demos_train:run", "teach a pointer selector what the teacher found"
    ),
    "demos predict": Command(
        "eligo.cli.demos_predict:run", "choose examples for a question, and say why those"
    ),
    "demos evaluate": Command(
        "eligo.cli.demos_evaluate:run", "what a selector is worth, beside nearest and random"
    ),
    "demos convert": Command(
        "eligo.cli.demos_convert:run", "a selector or learner to ship; weights of other programs"
    ),
    "demos exam": Command(
        "eligo.cli.demos_exam:run", "who chooses examples best, on a model that learns from them"
    ),
    "demos bench": Command(
        "eligo.cli.demos_bench:run", "how fast selectors train, rerank, search and are taught here"
    ),
    "demos train-learner": Command(
        "eligo.cli.demos_train_learner:run", "train the exam's model, which learns words in context"
    ),
    "patches train": Command(
        "eligo.cli.patches_train:run", "teach a model which text belongs to which image"
    ),
    "patches index": Command(
        "eligo.cli.patches_index:run", "encode images or texts once, to search them"
    ),
    "patches search": Command(
        "eligo.cli.patches_search:run", "find images by text, or texts by image"
    ),
    "patches predict": Command(
        "eligo.cli.patches_predict:run", "score a text on an image, and show what it looked at"
    ),
    "patches evaluate": Command(
        "eligo.cli.patches_evaluate:run", "recall both ways, every image with every text"
    ),
    "patches exam": Command(
        "eligo.cli.patches_exam:run", "what selecting patches costs, on generated scenes"
    ),
    "patches bench": Command(
        "eligo.cli.patches_bench:run", "how fast a model matches and searches here"
    ),
    "patches convert": Command(
        "eligo.cli.patches_convert:run", "read a LAPS or SEPS checkpoint; halve a model"
    ),
    "tokens plan": Command(
        "eligo.cli.tokens_plan:run", "how many vision tokens to keep, and where, to save so much"
    ),
    "tokens train": Command(
        "eligo.cli.tokens_train:run", "teach merger and pruners inside a frozen model"
    ),
    "tokens predict": Command(
        "eligo.cli.tokens_predict:run", "answer a question from fewer tokens, and show which"
    ),
    "tokens evaluate": Command(
        "eligo.cli.tokens_evaluate:run", "what a trained pruner keeps of the accuracy, by family"
    ),
    "tokens sweep": Command(
        "eligo.cli.tokens_sweep:run", "accuracy over cost: methods and plans, budget by budget"
    ),
    "tokens exam": Command(
        "eligo.cli.tokens_exam:run", "learned pruning against all rivals, at equal cost"
    ),
    "tokens bench": Command(
        "eligo.cli.tokens_bench:run", "what pruning is worth by the clock, beside the whole model"
    ),
    "tokens export": Command(
        "eligo.cli.tokens_export:run", "stage 1 as a module of its own, for serving engines"
    ),
    "pixels train": Command(
        "eligo.cli.pixels_train:run", "teach a model to segment rooms, guided by words"
    ),
    "pixels predict": Command(
        "eligo.cli.pixels_predict:run", "segment an image, and show which word guided which pixel"
    ),
    "pixels evaluate": Command(
        "eligo.cli.pixels_evaluate:run", "mean IoU and more, one row per kind of words"
    ),
    "pixels exam": Command(
        "eligo.cli.pixels_exam:run", "what words, temperature and depth do, on generated rooms"
    ),
    "pixels bench": Command("eligo.cli.pixels_bench:run", "how fast a model segments here"),
    "pixels convert": Command(
        "eligo.cli.pixels_convert:run", "read official DFormerv2 weights; halve a model"
    ),
    "pixels export": Command("eligo.cli.pixels_export:run", "a model as ONNX"),
    "scenes show": Command("eligo.cli.scenes_show:run", "the embedded world on one page"),
    "scenes export": Command(
        "eligo.cli.scenes_export:run", "scenes as files, in the formats of VQAv2, NYU and others"
    ),
    "scenes stats": Command(
        "eligo.cli.scenes_stats:run", "what a world is made of, and what blind answers reach"
    ),
    "scenes train-vlm": Command("eligo.cli.scenes_train_vlm:run", "train a tiny LLaVA"),
    "scenes evaluate-vlm": Command(
        "eligo.cli.scenes_evaluate_vlm:run", "how often the tiny LLaVA answers right"
    ),
    "search": Command("eligo.cli.search:run", "search the hyper-parameters of a run"),
}

ABOUT = {
    "demos": "which examples enter the prompt?",
    "patches": "which image patches matter to this text?",
    "tokens": "which vision tokens survive inside the language model?",
    "pixels": "which words guide which pixel?",
    "scenes": "the embedded world, with questions, captions and labels",
}
"""What the commands that have verbs are about, in one line."""
