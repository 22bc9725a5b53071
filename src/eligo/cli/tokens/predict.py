"""`eligo tokens predict`: answer one question from fewer tokens, with a picture of them."""

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import tyro

from eligo.cli.console import print_result, print_text, warn_unknown_words
from eligo.cli.flags import Budget, Count
from eligo.errors import InputError
from eligo.pretrained.chat import place_image

_GENERATED = (
    "note: the shipped model knows generated scenes only; for photos, give --model FOLDER, a "
    "vision-language model"
)


def run(
    question: str,
    image: Path | None = None,
    video: Path | None = None,
    frames: Count = 16,
    out: Path | None = None,
    plan: str | None = None,
    method: str | None = None,
    budgets: Annotated[tuple[Budget, ...], tyro.conf.arg(name="budget")] = (),
    layers: Annotated[tuple[Count, ...], tyro.conf.arg(name="layer")] = (),
    model: str | None = None,
    max_new_tokens: Count = 16,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    time: bool = False,
    json: bool = False,
) -> None:
    """Answer a question about an image or a video from the vision tokens that a plan keeps.

    Prints the answer and its cost. With --out, also writes a picture of the tokens that survive
    each stage; `eligo explore OUT` shows them one by one. Without --plan and --method, the tiny
    LLaVA that comes with eligo is pruned by its own plan.

    Args:
        question: The question.
        image: The image file.
        video: A video file instead, for a Qwen2-VL, Qwen2.5-VL or Qwen3-VL; budgets are then of
            the whole clip. Needs the extras video and hosts.
        frames: Frames to read of a video, evenly spaced.
        out: The folder to write pictures to.
        plan: A plan: a folder (of a plan, a checkpoint or a run), or the name of a shipped one.
        method: A training-free method instead of a plan, such as fastv or divprune, with options
            after a colon: uniform:phase=first.
        budgets: Vision tokens that the method keeps of an image (of a tile, for hosts that tile);
            or a share of them, such as 0.25; several, with a layer each, for several cuts. With
            a plan: what its first stage keeps; the other stages change in proportion.
        layers: Layers at which a method inside the language model cuts; by default layer 2.
        model: Folder or hub name of the host; by default the tiny LLaVA that comes with eligo.
        max_new_tokens: Maximum length of the answer.
        device: Where to run: auto, cpu or cuda.
        dtype: Data type of the weights.
        time: Also measure the time to the first token (ten repeats) and that of the selector.
        json: Print one JSON document.
    """
    if not place_image(question, "--question").strip():
        raise InputError("--question: is empty")
    if (image is None) == (video is None):
        raise InputError("expected either --image FILE or --video FILE")
    from eligo.tokens.inference.resolve import load_plan

    given = plan or method or budgets or layers
    chosen = load_plan(plan, method, budgets, layers) if given or model else None
    from eligo.images import open_image
    from eligo.pretrained.devices import resolve_device
    from eligo.tokens.config import HostConfig
    from eligo.tokens.hosts import budget_unit
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.inference.predict import PICTURE, predict
    from eligo.video import open_clip

    opened = open_clip(video, frames) if video is not None else open_image(cast("Path", image))
    host, processor = load_host(
        HostConfig(model=model, dtype=dtype), device=str(resolve_device(device))
    )
    warn_unknown_words(processor.tokenizer, [question])
    prediction = predict(
        opened, question, model=host, processor=processor, plan=chosen,
        max_new_tokens=max_new_tokens, timed=time,
    )  # fmt: skip
    written = {} if out is None else {"picture": prediction.save(out) / PICTURE}
    if json:
        cost = prediction.cost.as_plain()
        print_result({"answer": prediction.answer, **written, "cost": cost}, json=True)
        return
    print_text(f"answer: {prediction.answer}")
    if model is None:
        print_text(_GENERATED)
    print_text("")
    print_text(prediction.cost.block())
    if video is None and (count := len(prediction.images)) > 1:
        config: Any = host.config
        unit = budget_unit(config.model_type)
        print_text(f"budgets are per {unit}; this image has {count}")
    if out is not None:
        print_text(f"\nwritten: {written['picture']}")
