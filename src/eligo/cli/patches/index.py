"""`eligo patches index`: encode images (or texts) once, to search them later."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from eligo.cli.console import print_message, print_result
from eligo.cli.flags import Count, Index, OptionalPath
from eligo.cli.patches.flags import GENERATED, open_model
from eligo.config.bounds import Bounds
from eligo.errors import InputError
from eligo.images import printable_name
from eligo.io.interrupts import stopped_with

_SHOWN = 5  # skipped files


def run(
    images: OptionalPath = None,
    *,
    out: Path,
    texts: Path | None = None,
    scenes: Count | None = None,
    dense: Path | None = None,
    model: str | None = None,
    dtype: Literal["float16", "float32"] = "float16",
    shard_size: Count = 512,
    batch_size: Count = 32,
    device: str = "auto",
    engine: Literal["local", "ray"] = "local",
    num_workers: Index | None = None,
    gpus_per_worker: Annotated[float, Bounds(0)] = 0.0,
    json: bool = False,
) -> None:
    """Index a folder of images, the texts of a file, or generated scenes.

    Repeat the command to continue an interrupted run, or after images were added, changed, renamed
    or removed: only new ones are encoded. Unreadable images are skipped and listed.

    Args:
        images: A folder of images, with its subfolders.
        out: The folder to write to.
        texts: Instead of images, a file of texts: one per line, or JSON lines with "text".
        scenes: Instead of images, this many generated scenes.
        dense: Dense captions, as JSON lines with "image_id" and "text"; for a model with them.
        model: Folder of a model or run, or a CLIP or SigLIP model, by folder or hub name; by
            default the shipped model.
        dtype: Precision of the stored vectors.
        shard_size: Images or texts in a file.
        batch_size: Images or texts encoded at a time.
        device: Where to run: auto, cpu or cuda.
        engine: In this process, or on workers of Ray.
        num_workers: Processes that decode images, 0 for none beside this one; by default one for
            each core but one. With --engine ray, workers of Ray, by default 1.
        gpus_per_worker: GPUs of each worker of Ray.
        json: Print one JSON document.
    """
    if sum(given is not None for given in (images, texts, scenes)) != 1:
        raise InputError("expected one of a folder of images, --texts FILE and --scenes COUNT")
    if dense is not None and images is None:
        raise InputError("--dense: goes with a folder of images")
    from eligo.patches.data.readers import read_dense_captions
    from eligo.patches.index import ImageFiles, ScenePictures, TextLines, build_index
    from eligo.patches.index.store import SKIPPED
    from eligo.train.progress import ProgressBar

    load = partial(open_model, model, device)
    opened = load()
    if texts is not None:
        source = TextLines.of(texts)
    elif scenes is not None:
        size = opened.image_encoder.image_size
        source = ScenePictures.first(scenes, size, dense=opened.uses_dense)
    else:
        assert images is not None
        source = ImageFiles.under(images, None if dense is None else read_dense_captions(dense))

    def stopped() -> str:
        return f"stopped; what was encoded is kept in {out}, the same command continues"

    with stopped_with(stopped), ProgressBar(source.kind, len(source.ids)) as bar:
        built = build_index(
            (lambda: opened) if engine == "local" else load,
            source,
            out,
            shard_size=shard_size,
            batch_size=batch_size,
            dtype=dtype,
            engine=engine,
            num_workers=num_workers,
            gpus_per_worker=gpus_per_worker,
            on_done=lambda done, total: bar.update(done, total=total),
        )
    if images is not None and model is None:
        print_message(GENERATED)
    for row in built.skipped[:_SHOWN]:
        print_message(f"skipped: {printable_name(row['id'])}: {row['why']}")
    if len(built.skipped) > _SHOWN:
        print_message(f"and {len(built.skipped) - _SHOWN} more, listed in {out / SKIPPED}")
    print_result(
        {
            "index": built.folder,
            source.kind: built.entries,
            "encoded now": built.encoded,
            "gone or changed": built.gone,
            "skipped": [row["id"] for row in built.skipped] if json else len(built.skipped),
            "shards already there": built.resumed,
            "KiB each": round(built.bytes_per_entry / 1024, 1),
            f"{source.kind} per second": round(built.encoded / max(built.seconds, 1e-3), 1),
        },
        json,
    )
