"""`eligo pixels predict`: segment images, and show which word guided which pixel."""

from pathlib import Path
from typing import Any, Literal

from eligo.cli.console import print_message, print_result, print_text
from eligo.cli.flags import Index, Positive, Side
from eligo.cli.pixels.flags import NO_FLAGS, SamCheck, open_segmenter
from eligo.errors import InputError


def run(
    image: Path,
    out: Path,
    depth: Path | None = None,
    tags: str = "",
    text: str = "",
    model: Path | None = None,
    depth_format: Literal["png8", "metric", "sun16"] | None = None,
    depth_scale: Positive | None = None,
    resize_depth: bool = False,
    size: tuple[Side, Side] | None = None,
    preset: Index | None = None,
    sam: SamCheck = NO_FLAGS,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Segment an image, or a folder of images; depth and words are optional.

    Writes label.png (classes), confidence.png (probability of the class, 255 is 1), overlay.png,
    tags/NN_name.png (attention to each word), result.json, and what `eligo explore OUT` shows.

    Args:
        image: The image file, or a folder of images.
        out: The folder to write to; of a folder, every image gets a folder of its name in it.
        depth: Its depth: a PNG, TIFF or .npy file of the same size; or a folder of such files, with
            the names of the images.
        tags: What is in the image, separated by commas. Name everything that is visible: a model
            trained only with complete tags may miss what is not named.
        text: Instead of tags, a sentence about it, for a model that was trained with captions.
        model: Name or folder of a model or run; by default the one that comes with eligo, which
            is for generated rooms only; for photos, use `eligo pixels convert` or train.
        depth_format: How depth is stored, if not as in the training of the model.
        depth_scale: Stored units per metre, if not as in the training of the model (1: metres).
        resize_depth: Resize depth of another size, which must show exactly what the image shows.
        size: Height and width to scale the image to; labels keep the size of the image. Objects
            should be about as large as in training: 96 128 for the model that comes with eligo.
        preset: Require a model that compares pixels and words as this preset does.
        sam: Require a model with these settings; others are not checked.
        device: Where to run: auto, cpu or cuda.
        json: Print one JSON document.
    """
    segmenter = open_segmenter(model, device, sam, preset)
    from eligo.io.reading import read_json
    from eligo.pixels.inference.as_trained import describe
    from eligo.pixels.inference.folders import frame_files
    from eligo.pixels.inference.predict import RESULT, predict

    stored = {"depth": depth_format, "depth_scale": depth_scale,
              "resize_depth": resize_depth or None}  # fmt: skip
    given = {key: value for key, value in stored.items() if value is not None}
    inputs = segmenter.config.inputs.replace(given)
    for key, reason in inputs.without_effect().items():
        if key in given:
            raise InputError(f"--{key}: has no effect here ({reason}); leave it out")

    def written(image: Path, depth: Path | None, out: Path) -> dict[str, Any]:
        found = predict(
            image, depth, tags, model=segmenter, captions=text, inputs=inputs, size=size
        )
        return read_json(found.save(out) / RESULT)

    if image.is_dir():
        rows, skipped = [], []
        for path, its_depth in frame_files(image, depth):
            try:
                result = written(path, its_depth, out / path.stem)
            except InputError as error:
                if not str(error).startswith((str(path), str(its_depth))):
                    raise
                skipped.append(error)
                print_message(f"skipped: {error}")
                continue
            rows.append({"image": path.name, "out": str(out / path.stem), **result})
        if not rows:
            raise skipped[0]
        shown = [{"image": row["image"], "out": row["out"]} for row in rows]
        print_result(rows if json else shown, json)
        return
    result = written(image, depth, out)
    if json:
        print_result(result, json=True)
        return
    print_result({name: result[name] for name in ("classes", "words") if result[name]}, json=False)
    print_text(f"model: {describe(result['trained'])}")
    for file in result["files"]:
        print_text(f"written: {file}")
