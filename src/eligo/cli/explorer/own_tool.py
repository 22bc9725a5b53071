"""Live pruning of a user's own vision-language model, with the training-free methods.

The slider is a share of the vision tokens, since their number may depend on the image. The model is
loaded when the server starts, so that one that cannot be pruned is refused there.
"""

from pathlib import Path
from typing import Any, Literal

from eligo.cli.demo.page import photos
from eligo.cli.explorer.questions import refuse_empty
from eligo.cli.explorer.tokens_tool import METHODS_OF_IMAGES, NOTHING, Pruner
from eligo.errors import InputError
from eligo.explorer.tools import (
    LiveBudget,
    LiveChoice,
    LiveExample,
    LiveRequest,
    LiveText,
    LiveTool,
)
from eligo.pretrained.load import find_host, load_part
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.load import load_host
from eligo.tokens.plan import Plan

DType = Literal["float32", "bfloat16", "float16"]
_FIRST = "divprune"  # works in every host
_SHARE = 25  # per cent
_QUESTION = "What is in this picture?"
_ENCODERS = {
    **dict.fromkeys(("clip", "siglip"), "`eligo patches predict --model` takes this one"),
    **dict.fromkeys(
        ("dinov2", "clip_vision_model", "siglip_vision_model"),
        "`eligo tokens build --tower` joins this one with a language model",
    ),
}
_ABOUT = (
    "Your model {name}, with training-free methods only. Plans trained for other models are not "
    "offered; `eligo tokens train --host.model FOLDER` trains one for yours. A model of `eligo "
    "tokens build` answers nonsense until `eligo tokens finetune`. For the other tasks, start "
    "without `--model`."
)


def own_tool(model: str, device: str, dtype: DType = "float32") -> LiveTool:
    """Return the tool of a model: a folder, or a name on the hub."""
    from transformers import AutoConfig

    kind = load_part(AutoConfig, find_host(model, weights=False)).model_type
    if kind in _ENCODERS:
        raise InputError(
            f"--model: {model} is an encoder ({kind}), which answers no questions; expected a "
            f"vision-language model. {_ENCODERS[kind]}"
        )
    host, processor = load_host(HostConfig(model=model, dtype=dtype), device=device)
    HostShape.of(host)  # refuses models that cannot be pruned
    methods = (_FIRST, *(name for name in METHODS_OF_IMAGES if name != _FIRST))
    examples = [
        LiveExample(record.title, record.title.partition(":")[0], picture, _QUESTION)
        for record in photos()
        for picture in list(record.pictures.values())[:1]
    ]
    return LiveTool(
        name="tokens",
        title="Prune vision tokens",
        about=_ABOUT.format(name=Path(model).name),
        text=LiveText("Question", _QUESTION, _QUESTION),
        budget=LiveBudget("Vision tokens kept", 1, 100, 1, _SHARE, "%"),
        choices=[
            LiveChoice("method", "Method", methods),
            LiveChoice("beside", "Beside it", (NOTHING, *methods)),
        ],
        examples=examples,
        run=_OwnPruner(host, processor).run,
    )


class _OwnPruner(Pruner):
    max_new_tokens = 32

    def __init__(self, model: Any, processor: Any) -> None:
        super().__init__(known={})
        self.host = (model, processor)

    def plan(self, name: str, budget: int | float) -> Plan:
        return super().plan(name, budget / 100)

    def note(self, request: LiveRequest) -> str:
        refuse_empty(request.text)
        return ""
