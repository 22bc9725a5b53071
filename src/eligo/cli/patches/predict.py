"""`eligo patches predict`: how well a text fits an image, and which patches it looked at."""

from dataclasses import asdict
from pathlib import Path

from eligo.cli.console import print_result, print_text, warn_unknown_words
from eligo.cli.patches.flags import open_model
from eligo.errors import InputError
from eligo.io.files import writing

PICTURE = "patches.png"


def run(
    image: Path,
    text: str,
    out: Path,
    dense: str | None = None,
    model: str | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Score a text on an image, and show which patches it kept and what each word found.

    Prints the score, each word's best token with its cosine, and the cost; writes a picture, and
    what `eligo explore OUT` shows.

    Args:
        image: The image file.
        text: The text.
        out: The folder to write to.
        dense: The image's dense caption, for a model that was trained with them.
        model: Folder of a model or run; by default the one that comes with eligo.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if not text.strip():
        raise InputError("--text: is empty")
    from eligo.explorer.folder import save_prediction
    from eligo.images import open_image
    from eligo.patches.inference.predict import predict
    from eligo.patches.inference.record import record

    open_image(image)  # a mistake in its name is said before a model is loaded
    loaded = open_model(model, device)
    opened = open_image(image, loaded.image_encoder.image_size)
    if loaded.uses_dense and dense is None:
        raise InputError("--dense: needed, as the model was trained with a dense caption per image")
    if dense is not None and not loaded.uses_dense:
        raise InputError("--dense: the model was trained without dense captions; leave it out")
    warn_unknown_words(loaded.text_encoder.tokenizer, [text])
    made = predict(loaded, opened, text, dense)
    picture = out / PICTURE
    with writing(picture) as temporary:
        made.picture.save(temporary, "PNG")
    save_prediction(record(made, opened, text), out)
    if json:
        found = {"score": made.score, "words": made.words, "picture": picture}
        print_result({**found, "cost": asdict(made.cost)}, json=True)
        return
    cost = made.cost
    lines = [
        f"score {made.score:.4f}",
        f"patches {cost.patches} > {cost.kept} kept > {cost.tokens} tokens, for {cost.words} words",
    ]
    for line in lines:
        print_text(line)
    print_result(made.words, json=False)
    lines = [
        f"a pair: {cost.pair_kmacs:,.0f} k multiply-adds ({cost.association}), "
        f"{cost.loop_kmacs:,.0f} k as documented; {cost.match_ms:.1f} ms",
        f"encoding: image {cost.encode_image_ms:.1f} ms, text {cost.encode_text_ms:.1f} ms",
        f"in an index: {cost.index_bytes / 1024:.1f} KiB",
        f"written: {picture}",
    ]
    for line in lines:
        print_text(line)
