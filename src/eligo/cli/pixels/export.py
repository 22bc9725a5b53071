"""`eligo pixels export`: export a model to ONNX."""

from pathlib import Path

from eligo.cli.console import print_result
from eligo.cli.flags import Count, Side
from eligo.cli.pixels.flags import NO_FLAGS, SamCheck, open_segmenter

_SIZE = (480, 640)  # of NYUDepthv2's images


def run(
    out: Path,
    height: Side | None = None,
    width: Side | None = None,
    num_words: Count | None = None,
    model: Path | None = None,
    sam: SamCheck = NO_FLAGS,
    json: bool = False,
) -> None:
    """Write model.onnx and onnx.json, which describes it.

    Height, width and number of words are fixed, the batch is not. Needs the extra onnx.

    Args:
        out: The folder to write to.
        height: Height of the images; by default as in its training, or 480.
        width: Width of the images; by default as in its training, or 640.
        num_words: Words of an image, with padding; by default as in its training.
        model: Folder of a model or run; by default the one that comes with eligo.
        sam: Require a model with these settings; others are not checked.
        json: Print one JSON document.
    """
    segmenter = open_segmenter(model, "cpu", sam)
    from eligo.pixels.inference.export import export_onnx

    trained = segmenter.config.image_size or _SIZE
    height = trained[0] if height is None else height
    width = trained[1] if width is None else width
    print_result(export_onnx(segmenter, out, height=height, width=width, num_words=num_words), json)
