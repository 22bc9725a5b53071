"""`eligo shots predict`: choose examples for a question, or for all queries of a folder."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import OutFile, OutFileOrFolder, check_out, print_result, print_text
from eligo.cli.flags import Count, OptionalPath
from eligo.errors import InputError


def _also(*names: str) -> Any:
    """Names of a flag in the published design's command."""
    return tyro.conf.arg(aliases=[f"--{name}" for name in names])


def run(
    folder: OptionalPath = None,
    question: str | None = None,
    data: Path | None = None,
    selector: Annotated[Path, _also("checkpoint_path")] = Path("runs/shots_v3_scores"),
    embedded: Path | None = None,
    image: Path | None = None,
    group: str | None = None,
    vectors: Path | None = None,
    images: Annotated[Path | None, _also("image_path")] = None,
    shots: Count | None = None,
    num_candidates: Count | None = None,
    model: Annotated[str | None, _also("vlm_model_path")] = None,
    url: str | None = None,
    model_version: Literal["v0", "v1", "v2", "v3"] | None = None,
    out: Annotated[OutFileOrFolder | None, _also("output_path")] = None,
    batch_size: Count | None = None,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Choose examples for a question and explain the choice, or for all queries of a folder.

    With --data, one JSON line for each query is appended to --out; started again, the same command
    continues. The flags of the published design's command work too (--checkpoint_path, ...).

    Args:
        folder: The same as --data.
        question: The question.
        data: Folder of `eligo shots embed`: choose for all its queries.
        selector: Folder of a run of `eligo shots train`, or of its selector. With --embedded or
            --data also a model: a folder of `eligo shots convert`, a checkpoint of a run, a shipped
            model, or with --model_version a file of weights (.pth).
        embedded: Folder of `eligo shots embed` with the examples to choose from; by default those
            of the selector, else of --data.
        image: The image that the question is about, if examples have images.
        group: Leave out examples of this group, for --question.
        vectors: File with the question's own vector (.npy, .safetensors), for --question.
        images: Folder of the images, if they have moved since they were embedded, for --data.
        shots: Number of examples; by default as many as the selector was trained for (at most 6
            unless changed in training).
        num_candidates: Number of examples to choose from, drawn by the sampler of the training; by
            default as in training. The size of the pool, or more: all of them.
        model: Also answer after the examples, with this host (folder or hub name).
        url: Address of an OpenAI-compatible server that runs --model (its name there), such as
            http://localhost:8000/v1; a key comes from ELIGO_API_KEY or OPENAI_API_KEY.
        model_version: Refuse a selector of another version.
        out: With --data, the file to write. With --question, a folder for `eligo explore OUT`: the
            chosen beside the others.
        batch_size: Queries that the host answers together, for --data; by default 16.
        device: Where encoder and host run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    if folder is not None:
        if data is not None or not folder.is_dir():
            raise InputError(
                f"got {str(folder)!r:.80}, an unexpected word; give a question as --question, a "
                "folder of `eligo shots embed` as --data"
            )
        data = folder
    if (question is None) == (data is None):
        got = "neither" if data is None else "both"
        raise InputError(
            f"got {got}; expected either --question, or --data (a folder of `eligo shots embed`; "
            "beside --question, it is --embedded)"
        )
    if url is not None and model is None:
        raise InputError("--url: also name the model that the server runs (--model)")
    common: dict[str, Any] = {
        "selector": selector, "shots": embedded, "num_shots": shots,
        "num_candidates": num_candidates, "host": model, "url": url, "device": device,
        "model_version": model_version,
    }  # fmt: skip
    if data is not None:
        _refuse("question", image=image, group=group, vectors=vectors)
        if out is None:
            raise InputError("--data needs --out, the file to write a JSON line per query to")
        check_out(out, OutFile)
        from eligo.shots import predict_batch

        size = 16 if batch_size is None else batch_size
        print_result(predict_batch(data, out, images=images, batch_size=size, **common), json)
        return
    _refuse("data", images=images, batch_size=batch_size)
    if out is not None:
        check_out(out, Path)
    if vectors is not None:
        from eligo.shots.data.vectors import read_vectors

        views = read_vectors(vectors, ["question"])
        common["vector"] = {name: view[0] for name, view in views.items()}
        if len(views) == 1:
            [common["vector"]] = common["vector"].values()
    _predict_one(str(question), image, group, out, common, json)


def _refuse(other: str, **flags: Any) -> None:
    """Refuse flags that belong to the other way to call the command."""
    for name, value in flags.items():
        if value is not None:
            raise InputError(f"--{name} goes with --{other}; leave it out")


def _predict_one(
    question: str,
    image: Path | None,
    group: str | None,
    out: Path | None,
    common: dict[str, Any],
    json: bool,
) -> None:
    from eligo.shots import predict

    prediction = predict(question, image, group=group, **common)
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
