"""`eligo tokens predict`: one question, the answer from fewer tokens, and a picture of them."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from eligo.cli.console import print_result, print_text, warn_unknown_words
from eligo.cli.flags import Count
from eligo.errors import InputError
from eligo.io.files import writing
from eligo.pretrained.chat import place_image

PICTURE = "tokens.png"


def run(
    image: Path,
    question: str,
    out: Path,
    plan: str | None = None,
    method: str | None = None,
    budgets: Annotated[tuple[Count, ...], tyro.conf.arg(name="budget")] = (),
    layers: Annotated[tuple[Count, ...], tyro.conf.arg(name="layer")] = (),
    model: str | None = None,
    max_new_tokens: Count = 16,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    time: bool = False,
    json: bool = False,
) -> None:
    """Answer a question about an image from the vision tokens that a plan keeps.

    Prints the answer and what it cost, and writes a picture of which tokens survived each stage;
    `eligo explore OUT` shows them one by one.

    Args:
        image: The image file.
        question: What to ask.
        out: The folder to write to.
        plan: A plan: a folder (of a plan, a checkpoint or a run), or the name of a shipped one.
        method: Instead of a plan, a training-free method, such as fastv or divprune, with options
            behind a colon: uniform:phase=first.
        budgets: Vision tokens that the method keeps; several, with a layer each, for several cuts.
        layers: Where a method inside the language model cuts; by default at layer 2.
        model: Folder or hub name of the host; by default the tiny LLaVA that comes with eligo.
        max_new_tokens: Longest answer.
        device: Where to run: auto, cpu or cuda.
        dtype: The weights' type.
        time: Also measure the time to the first token (ten repeats) and the selector's part.
        json: Print one JSON document.
    """
    if not place_image(question, "--question").strip():
        raise InputError("--question: is empty")
    from eligo.tokens.inference.resolve import find_plan

    chosen = find_plan(plan, method, budgets, layers)
    from eligo.explorer.folder import save_prediction
    from eligo.images import open_image
    from eligo.pretrained.devices import resolve_device
    from eligo.tokens.inference.load import load_host
    from eligo.tokens.inference.predict import predict
    from eligo.tokens.inference.record import record
    from eligo.tokens.inputs_config import HostConfig

    opened = open_image(image)
    place = str(resolve_device(device))
    host, processor = load_host(HostConfig(model=model, dtype=dtype), device=place)
    warn_unknown_words(processor.tokenizer, [question])
    made = predict(
        host, processor, chosen, opened, question, max_new_tokens=max_new_tokens, timed=time
    )
    picture = out / PICTURE
    with writing(picture) as temporary:
        made.picture.save(temporary, "PNG")
    save_prediction(record(made, question), out)
    if json:
        found = {"answer": made.answer, "picture": picture, "cost": made.cost.as_plain()}
        print_result(found, json=True)
        return
    print_text(f"answer: {made.answer}\n")
    print_text(made.cost.block())
    print_text(f"\nwritten: {picture}")
