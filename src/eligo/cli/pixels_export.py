"""`eligo pixels export`: a model as ONNX."""

from pathlib import Path

from eligo.cli.console import print_result
from eligo.cli.pixels_flags import NO_FLAGS, SamCheck, open_segmenter


def run(
    out: Path,
    height: int = 480,
    width: int = 640,
    num_words: int | None = None,
    model: Path | None = None,
    sam: SamCheck = NO_FLAGS,
    json: bool = False,
) -> None:
    """Write model.onnx and onnx.json, which describes it.

    Height, width and number of words are fixed, the batch is not. Needs the extra onnx.

    Args:
        out: The folder to write to.
        height: Of the images, in pixels.
        width: Of the images, in pixels.
        num_words: Words of an image, with padding; by default as in its training.
        model: Folder of a model or run; by default the one that comes with eligo.
        sam: Refuse a model that compares pixels and words otherwise; what is not given is not
            checked.
        json: Print one JSON document.
    """
    segmenter = open_segmenter(model, "cpu", sam)
    from eligo.pixels.inference.export import export_onnx

    print_result(export_onnx(segmenter, out, height=height, width=width, num_words=num_words), json)
