"""`eligo shots predict`: choose examples for a question, with scores and reasons."""

from pathlib import Path

from eligo.cli.console import print_result, print_text
from eligo.cli.flags import Count


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
        question: The question.
        selector: Folder of a run of `eligo shots train`, or of its selector.
        image: The image that the question is about, if examples have images.
        group: Leave out examples of this group.
        shots: Number of examples; by default as many as the selector was trained for (at most 6
            unless changed in training).
        num_candidates: Number of examples to choose from, drawn by the sampler of the training; by
            default as in training. The size of the pool, or more: all of them.
        model: Also answer the question after the examples, with this host (folder or hub name).
        out: Also write a folder for `eligo explore OUT`: the chosen beside the others.
        device: Where encoder and host run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    from eligo.shots import predict

    prediction = predict(
        question, image, selector=selector, num_shots=shots, num_candidates=num_candidates,
        group=group, host=model, device=device,
    )  # fmt: skip
    written = None if out is None else prediction.save(out)
    summary = prediction.summary()
    if json:
        print_result(summary if written is None else {**summary, "folder": written}, json)
        return
    among = summary.pop("among")
    if prediction.answer is not None:
        summary["answer"] = [{"": prediction.answer}]
    print_result(summary, json)
    print_text(f"chosen among {among}")
    if written is not None:
        print_text(f"written: {written}")
