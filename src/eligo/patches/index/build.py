"""Build an index: encode images or texts, shard by shard, so that a killed run can be resumed."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.io.locks import one_writer
from eligo.patches.index import store
from eligo.patches.index.entries import join, pack_images, pack_texts
from eligo.patches.index.sources import ImageFiles, Loaded, Source, TextLines, Unreadable
from eligo.patches.model.pooled import PooledImageEncoder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.train.shards import Engine, map_shards

Dtype = Literal["float16", "float32"]
_BAD_NAME = "its name is not UTF-8; rename the file"


@dataclass(frozen=True)
class Built:
    """Result of `build_index`."""

    folder: Path
    entries: int
    skipped: list[dict[str, Any]]
    """Unreadable inputs: id and why."""
    resumed: int
    """Shards of an earlier run."""
    bytes_per_entry: float


def hash_of(model: RetrievalModel) -> str:
    """Return a hash of everything that a score depends on: weights and settings."""
    image, text = model.image_encoder, model.text_encoder
    colours = (torch.as_tensor(part).flatten().tolist() for part in (image.mean, image.std))
    settings: dict[str, Any] = {
        "match": model.config.match.model_dump(exclude={"kernel", "decision", "temperature"}),
        "compat": getattr(model.index_net(), "compat", False),
        "image": [image.image_size, *colours],
        "words": [text.max_words, text.max_dense_words],
    }
    if text.not_words:
        settings["not_words"] = text.not_words
    if isinstance(image, PooledImageEncoder):
        settings["processing"] = image.processing()
    return store.model_hash(model, json.dumps(settings, sort_keys=True))


def build_index(
    load_model: Callable[[], RetrievalModel],
    source: Source,
    folder: str | Path,
    *,
    shard_size: int = 512,
    batch_size: int = 32,
    dtype: Dtype = "float16",
    engine: Engine = "local",
    num_workers: int = 1,
    gpus_per_worker: float = 0.0,
    on_done: Callable[[int, int], None] | None = None,
) -> Built:
    """Index a source, or continue an interrupted run; calls `on_done(shards done, total)`.

    `load_model` is called in every worker. Interruptions and the number of workers do not change
    the result.
    """
    check_count("shard_size", shard_size)
    check_count("batch_size", batch_size)
    folder = Path(folder)
    model = load_model().eval()
    if source.kind == "images":
        model.check_dense(bool(source.about["dense"]))
    unnamed: Sequence[str] = ()
    if isinstance(source, ImageFiles):
        unnamed = source.skipped
        source = replace(source, side=model.image_encoder.image_size)
        if source.dense is not None:
            model.text_encoder.warn_truncated([source.dense[n] for n in source.ids], dense=True)
    elif isinstance(source, TextLines):
        model.text_encoder.warn_truncated(source.texts)
    manifest = store.Manifest(
        kind=source.kind,
        model=hash_of(model),
        inputs=store.inputs_hash(
            (name, source.stamp(place)) for place, name in enumerate(source.ids)
        ),
        num_inputs=len(source.ids),
        shard_size=shard_size,
        dtype=dtype,
        source=source.about,
    )
    with one_writer(folder):
        todo = store.begin(folder, manifest, source.ids)
        done = manifest.num_shards - len(todo)

        def report(count: int) -> None:
            if on_done is not None:
                on_done(done + count, manifest.num_shards)

        load = (lambda: model) if engine == "local" else load_model
        map_shards(
            partial(_worker, load, partial(_make_shard, source, folder, manifest, batch_size)),
            todo,
            engine=engine,
            num_workers=num_workers,
            gpus_per_worker=gpus_per_worker,
            max_tries=1,
            keep_going=False,
            on_done=report,
        )
        entries, skipped = store.finish(folder, manifest)
    size = sum(path.stat().st_size for path in store.shards_in(folder))
    skipped = [*skipped, *({"id": name, "why": _BAD_NAME} for name in unnamed)]
    return Built(folder, entries, skipped, done, size / max(1, entries))


def _worker(
    load_model: Callable[[], RetrievalModel], make: Callable[[RetrievalModel, int], None]
) -> Callable[[int], None]:
    return partial(make, load_model().eval())


def _make_shard(
    source: Source,
    folder: Path,
    manifest: store.Manifest,
    batch_size: int,
    model: RetrievalModel,
    number: int,
) -> None:
    places = manifest.inputs_of(number)
    packs, entries, skipped = [], [], []
    for start in range(places.start, places.stop, batch_size):
        batch = range(start, min(start + batch_size, places.stop))
        loaded: list[Loaded] = []
        for place, item in zip(batch, source.load(batch), strict=True):
            if isinstance(item, Unreadable):
                skipped.append({"id": source.ids[place], "why": item.why})
            else:
                loaded.append(item)
                entries.append(source.entry(place))
        if loaded:
            packs.append(_pack(model, source.kind, loaded, getattr(torch, manifest.dtype)))
    # A shard of unreadable files is written too, so that they are not tried again.
    tensors = join(packs) if packs else {"direction": torch.zeros(0, 0)}
    store.write_shard(folder, number, tensors, entries, skipped)


@torch.no_grad()
def _pack(
    model: RetrievalModel, kind: store.Kind, items: list[Loaded], dtype: torch.dtype
) -> dict[str, Tensor]:
    values, net = [item.value for item in items], model.index_net()
    if kind == "texts":
        return pack_texts(net, model.text_side(values), dtype)
    dense = [item.dense for item in items if item.dense is not None]
    return pack_images(net, model.image_side(values, dense or None), dtype)
