"""`eligo shots predict`: the examples that a question should get, and why those."""

from pathlib import Path
from typing import Any

from eligo.cli.console import print_result, print_text
from eligo.cli.flags import Count
from eligo.errors import InputError
from eligo.pretrained.chat import place_image


def run(
    question: str,
    selector: Path = Path("runs/shots_v1"),
    image: Path | None = None,
    group: str | None = None,
    shots: Count | None = None,
    num_candidates: Count | None = None,
    model: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Choose examples for a question; show their scores, and why not the next best.

    Args:
        question: What will be asked.
        selector: Folder of a run of `eligo shots train`, or of its selector.
        image: The image that the question is about, if examples have images.
        group: Leave out examples of this group.
        shots: How many examples; by default as many as the lists that it learned (at most 6 unless
            changed in training).
        num_candidates: Choose among so many examples, drawn by the sampler of the training; by
            default as many as there. A number as large as the pool: all of them.
        model: Also answer the question behind the examples, by this host (folder or hub name).
        out: Also write what `eligo explore OUT` shows: the chosen beside the others.
        device: Where encoder and host run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if image is not None:
        question = place_image(question, "--question")
    if not question.strip():
        raise InputError("--question: is empty")
    from eligo.images import open_image
    from eligo.shots.inference.embed import embed_query
    from eligo.shots.inference.encoders import WORDS, open_encoder
    from eligo.shots.inference.predict import check_encoder, explain, open_selector

    if image is not None:
        open_image(image)  # a mistake in its name is said first
    deployed = open_selector(selector, num_candidates)
    if image is not None and deployed.encoder == WORDS:
        raise InputError(
            f"--image: {selector} was embedded from words alone; leave out --image, or embed again "
            "with `eligo shots embed --encoder FOLDER` (of a CLIP or SigLIP model) and train anew"
        )
    picture = None if image is None else str(image)
    encoder = open_encoder(deployed.encoder, device)
    check_encoder(deployed, encoder)
    query = embed_query(encoder, f"question: {question}", question, picture, group)
    views = deployed.selector.pool.views
    if set(query.views) != set(views):
        has = "no --image" if image is None else "an --image"
        raise InputError(f"got {has}, but the examples have {', '.join(views)}; expected the same")
    count = shots or deployed.selector.model.config.shot_num
    steps = deployed.steps(query, count)
    told: dict[str, Any] = {"chosen": explain(deployed, query, steps)}
    among = deployed.looked_at(query)
    if json:
        told["among"] = among
    said = None
    if model is not None:
        from eligo.shots.inference.answer import answer

        picks = [step[0].id for step in steps]
        said = answer(deployed, model, device, question, picture, picks)
        told["answer"] = said if json else [{"": said}]
    written = None
    if out is not None:
        from eligo.explorer.folder import save_prediction
        from eligo.shots.inference.record import show

        heard = None if said is None or model is None else (Path(model).name, said)
        made = show(deployed, query, question, told["chosen"], image=picture, answer=heard)
        written = save_prediction(made, out)
        if json:
            told["record"] = written
    print_result(told, json)
    if not json:
        print_text(f"chosen among {among}")
    if written is not None and not json:
        print_text(f"written: {written}")
