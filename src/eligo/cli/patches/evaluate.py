"""`eligo patches evaluate`: recall and ranks of a model, every image with every text."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from eligo.cli.console import OutFile, print_result, write_result_file
from eligo.cli.flags import Count, OptionalPath
from eligo.errors import InputError

Source = Annotated[OptionalPath, tyro.conf.arg(metavar="[RUN_OR_MODEL]")]


def run(
    source: Source = None,
    *,
    captions: Path | None = None,
    images: Path | None = None,
    dense: Path | None = None,
    cache: Path | None = None,
    split: Literal["validation", "test"] = "test",
    scenes: Count = 1000,
    folds: Count = 1,
    oracle: bool = False,
    device: str = "auto",
    out: OutFile | None = None,
    json: bool = False,
) -> None:
    """Score every image with every text and print recalls and ranks of both directions.

    On generated scenes, or on the images of a Karpathy file.

    Args:
        source: Folder of a run or model; by default the shipped model.
        captions: A Karpathy JSON file, such as dataset_flickr30k.json; needs --images.
        images: Folder of its images.
        dense: JSON lines with a dense caption for every image.
        cache: Folder of stored features (data.cache of a training): what it holds is not encoded
            again.
        split: Split of the scenes or of the Karpathy file.
        scenes: Number of scenes, without --captions.
        folds: Also report the mean over this many parts of the images: 5 for COCO 1K.
        oracle: Give every query the dense caption of its own image, as published: a leak.
        device: Where to run: auto, cpu or cuda.
        out: Also write the result, with date, hardware and command, to this JSON file.
        json: Print one JSON document.
    """
    if (captions is None) != (images is None):
        raise InputError("--captions and --images go together: a Karpathy file and its images")
    if cache is not None and captions is None:
        raise InputError("--cache: stores features of files; give --captions and --images too")
    from eligo.cli.patches.flags import open_model
    from eligo.patches.inference.evaluate import score_set, score_with_oracle
    from eligo.patches.metrics import check_folds, fold_means, retrieval_metrics

    model = open_model(None if source is None else str(source), device)
    if captions is not None and images is not None:
        data: Any = _files(model, captions, images, dense, cache, split)
    else:
        data = _scenes(model, split, scenes)
    positive = data.positive.to(model.device)
    check_folds(len(positive), folds)
    scores = score_with_oracle(model, data) if oracle else score_set(model, data)
    result: dict[str, Any] = {
        "wiring": "ORACLE: every query gets its own image's dense caption" if oracle else "ours",
        "images": scores.shape[0],
        "texts": scores.shape[1],
        "unreadable": len(getattr(data, "unreadable", ())),
    }
    result |= retrieval_metrics(scores, positive).as_dict()
    if folds > 1:
        means = fold_means(scores, positive, data.owners.to(model.device), folds)
        result |= {f"{name}, mean of {folds} folds": value for name, value in means.items()}
    print_result(result, json)
    write_result_file(out, model.device, result)


def _scenes(model: Any, split: Literal["validation", "test"], count: int) -> Any:
    from eligo.patches.data.scene_source import SceneSet
    from eligo.scenes.config import SceneConfig

    side = model.image_encoder.image_size
    if model.text_encoder.backbone.config.vocab_size > 1000:
        raise InputError("this model does not read the scenes' words; give --captions and --images")
    return SceneSet(SceneConfig(height=side, width=side), split, count, 2, model.device)


def _files(
    model: Any, captions: Path, images: Path, dense: Path | None, cache: Path | None, split: str
) -> Any:
    from eligo.patches.config import KarpathyDataConfig
    from eligo.patches.data.file_source import FileSet
    from eligo.patches.data.readers import read_captions

    config = KarpathyDataConfig(
        captions=captions, images=images, dense=dense, augment=False, cache=cache
    )
    given = read_captions(config, "val" if split == "validation" else "test")
    if cache is None:
        return FileSet(given, model)
    from eligo.patches.data.cached_source import CachedSet, open_cache

    uses_dense = dense is not None and model.uses_dense
    return CachedSet(open_cache(config, model).features(given, dense=uses_dense), model)
