"""`eligo patches predict`: score of a text and an image, and the patches that the text keeps."""

from pathlib import Path

from eligo.cli.console import print_result, print_text, warn_unknown_words
from eligo.cli.flags import Budget
from eligo.cli.patches.flags import GENERATED, open_model
from eligo.errors import InputError


def run(
    image: Path,
    text: str,
    out: Path,
    dense: str | None = None,
    model: str | None = None,
    budget: Budget | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Score a text against an image, and show which patches it keeps and what each word matches.

    Prints the score, each word's best token with its cosine, and the cost. Writes patches.png,
    result.json, and the record for `eligo explore OUT`.

    Args:
        image: The image file.
        text: The text.
        out: The folder to write to.
        dense: The image's dense caption, for a model that was trained with them.
        model: Folder of a model or run, or a CLIP or SigLIP model, by folder or hub name, which
            gives the score only; by default the shipped model.
        budget: Patches to keep for the text, or a share of them, such as 0.25; by default the share
            of the training.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if not text.strip():
        raise InputError("--text: is empty")
    from eligo.images import open_image
    from eligo.patches.inference.predict import PICTURE, predict

    open_image(image)  # a missing file is reported before a model is loaded
    loaded = open_model(model, device)
    loaded.check_dense(dense is not None)
    warn_unknown_words(loaded.text_encoder.tokenizer, [text])
    prediction = predict(image, text, model=loaded, dense=dense, budget=budget)
    picture, cost = prediction.save(out) / PICTURE, prediction.cost
    if json:
        summary = prediction.summary()
        fields = {n: summary[n] for n in ("score", "words", "cost", "note") if n in summary}
        print_result({**fields, "picture": picture}, json=True)
        return
    print_text(f"score {prediction.score:.4f}")
    if model is None:
        print_text(GENERATED)
    if prediction.note:
        print_text(prediction.note)
    else:
        print_text(
            f"patches {cost.patches} > {cost.kept} kept > {cost.tokens} tokens, "
            f"for {cost.words} words"
        )
        print_result(prediction.words, json=False)
        print_text(
            f"a pair: {cost.pair_kmacs:,.0f} k multiply-adds ({cost.association}), "
            f"{cost.loop_kmacs:,.0f} k as published; {cost.match_ms:.1f} ms"
        )
    print_text(f"encoding: image {cost.encode_image_ms:.1f} ms, text {cost.encode_text_ms:.1f} ms")
    print_text(f"in an index: {cost.index_bytes / 1024:.1f} KiB")
    print_text(f"written: {picture}")
