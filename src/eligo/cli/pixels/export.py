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
    words: str = "",
    dynamic: bool = False,
    model: Path | None = None,
    sam: SamCheck = NO_FLAGS,
    json: bool = False,
) -> None:
    """Write model.onnx, onnx.json (which describes it) and words.npy (vectors of words).

    The graph takes colours and depth as a camera gives them. The number of words is fixed, the
    batch is not. Needs the extra onnx.

    Args:
        out: The folder to write to.
        height: Height of the images; by default as in its training, or 480.
        width: Width of the images; by default as in its training, or 640.
        num_words: Words of an image, with padding; by default as in its training.
        words: Words to store besides the names of the classes, separated by commas.
        dynamic: Allow every height and width that is a multiple of 32.
        model: Folder of a model or run; by default the one that comes with eligo.
        sam: Require a model with these settings; others are not checked.
        json: Print one JSON document.
    """
    segmenter = open_segmenter(model, "cpu", sam)
    from eligo.pixels.inference.export import export_onnx
    from eligo.pixels.inference.words import listed

    trained = segmenter.config.image_size or _SIZE
    height = trained[0] if height is None else height
    width = trained[1] if width is None else width
    exported = export_onnx(
        segmenter, out, height=height, width=width, num_words=num_words,
        words=listed(words, ","), dynamic=dynamic,
    )  # fmt: skip
    print_result(exported, json)
