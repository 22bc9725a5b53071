"""Build or update an index: encode what is new, batch by batch, so that a kill loses one batch."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.files import remove_file
from eligo.io.locks import one_writer
from eligo.patches.index import store
from eligo.patches.index.entries import join, pack_images, pack_texts
from eligo.patches.index.plan import plan_update
from eligo.patches.index.sources import ImageFiles, Loaded, Source, TextLines, Unreadable
from eligo.patches.model.encoders import ImageEncoder
from eligo.patches.model.pooled import PooledImageEncoder
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.train.check import listed
from eligo.train.shards import Engine, map_shards

Dtype = Literal["float16", "float32"]
_NOTHING = {"direction": torch.zeros(0, 0)}


@dataclass(frozen=True)
class Built:
    """Result of `build_index`."""

    folder: Path
    entries: int
    encoded: int
    """Entries that this run has encoded; all others were there."""
    gone: int
    """Entries of the last run whose input has been removed or changed."""
    skipped: list[dict[str, Any]]
    """Unreadable inputs: id and why."""
    resumed: int
    """Shards of an earlier run."""
    bytes_per_entry: float
    seconds: float
    """Time to load and encode."""


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
    if image.layers != (-1,):
        settings["layers"] = image.layers
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
    num_workers: int | None = None,
    gpus_per_worker: float = 0.0,
    on_done: Callable[[int, int], None] | None = None,
) -> Built:
    """Index a source, update its index or continue an interrupted run.

    Only inputs that are not in the index are encoded (see `plan`). `num_workers` processes decode
    image files (None: by the number of cores); with Ray, that many workers decode and encode.
    `load_model` is called in every worker of Ray. Calls `on_done(inputs done, total)`.
    Interruptions and the number of workers do not change the result.
    """
    check_count("shard_size", shard_size)
    check_count("batch_size", batch_size)
    folder = Path(folder)
    model = load_model().eval()
    if source.kind == "images":
        model.check_dense(bool(source.about["dense"]))
    if isinstance(source, ImageFiles):
        source = replace(source, side=model.image_encoder.image_size)
        if source.dense is not None:
            model.text_encoder.warn_truncated([source.dense[n] for n in source.ids], dense=True)
    elif isinstance(source, TextLines):
        model.text_encoder.warn_truncated(source.texts)
    manifest = store.Manifest(source.kind, hash_of(model), dtype, source.about)
    with one_writer(folder):
        plan = plan_update(store.begin(folder, manifest), source)
        jobs = _jobs(folder, plan.todo, shard_size)
        done = 0

        def report(inputs: int) -> None:
            nonlocal done
            done += inputs
            if on_done is not None:
                on_done(done, len(plan.todo))

        if plan.todo:
            report(0)
        is_local = engine == "local"
        make = partial(_make_shard, source, folder, manifest, batch_size)
        make = partial(make, num_workers if is_local else 0, report if is_local else None)
        started = perf_counter()
        map_shards(
            partial(_worker, (lambda: model) if is_local else load_model, make),
            jobs,
            engine=engine,
            num_workers=num_workers or 1,
            gpus_per_worker=gpus_per_worker,
            max_tries=1,
            keep_going=False,
            on_done=None if is_local else lambda finished: report(len(jobs[finished - 1].places)),
        )
        seconds = perf_counter() - started
        made = [store.Shard(store.shard_path(folder, job.number)) for job in jobs]
        listings = [shard.listing for shard in made]
        shards = [
            *plan.shards,
            *((s, each["entries"]) for s, each in zip(made, listings, strict=True)),
        ]
        shards.sort(key=lambda pair: store.shard_number(pair[0].path))
        skipped = [*plan.skipped, *(line for each in listings for line in each["skipped"])]
        skipped = [*sorted(skipped, key=lambda line: line["id"]), *source.skipped]
        entries = sum(line is not None for _, lines in shards for line in lines)
        if not entries:
            why = listed([f"{line['id']}: {line['why']}" for line in skipped])
            raise InputError(
                f"{folder}: none of {len(source.ids)} {source.kind} can be read; {why}"
            )
        store.finish(folder, manifest, shards, skipped)
    size = sum(path.stat().st_size for path in store.shards_in(folder))
    return Built(
        folder,
        entries,
        sum(len(shard) for shard in made),
        plan.gone,
        [{"id": line["id"], "why": line["why"]} for line in skipped],
        len(plan.shards),
        size / entries,
        seconds,
    )


@dataclass(frozen=True)
class _Job:
    """A shard to make."""

    number: int
    places: Sequence[int]


def _jobs(folder: Path, todo: Sequence[int], shard_size: int) -> list[_Job]:
    """Return the shards to make, with the numbers that are free."""
    taken = {store.shard_number(path) for path in store.shards_in(folder)}
    numbers = (number for number in count() if number not in taken)
    return [
        _Job(next(numbers), todo[start : start + shard_size])
        for start in range(0, len(todo), shard_size)
    ]


def _worker(
    load_model: Callable[[], RetrievalModel], make: Callable[[RetrievalModel, _Job], None]
) -> Callable[[_Job], None]:
    return partial(make, load_model().eval())


def _make_shard(
    source: Source,
    folder: Path,
    manifest: store.Manifest,
    batch_size: int,
    num_workers: int | None,
    on_done: Callable[[int], None] | None,
    model: RetrievalModel,
    job: _Job,
) -> None:
    """Encode the inputs of a shard; every batch is kept in a part until the shard is complete."""
    packs, entries, skipped = _resume(source, folder, manifest, job)
    done = len(entries) + len(skipped)
    if on_done is not None and done:
        on_done(done)
    places = job.places[done:]
    number_of_part = count(len(store.parts_in(folder, job.number)))
    encoder = model.image_encoder
    batches = source.batches(places, batch_size, partial(_resized, encoder), num_workers)
    for items in batches:
        batch, places = places[: len(items)], places[len(items) :]
        loaded: list[Loaded] = []
        lines: tuple[list[store.Line], list[store.Line]] = ([], [])
        for place, item in zip(batch, items, strict=True):
            line = source.entry(place) | {"content": item.content}
            if isinstance(item, Unreadable):
                lines[1].append(line | {"why": item.why})
            else:
                loaded.append(item)
                lines[0].append(line)
        pack = _pack(model, source.kind, loaded, getattr(torch, manifest.dtype))
        if places:
            path = store.part_path(folder, job.number, next(number_of_part))
            store.write_shard(path, manifest.model, pack, *lines)
        packs += [pack] if loaded else []
        entries += lines[0]
        skipped += lines[1]
        if on_done is not None:
            on_done(len(items))
    # A shard of unreadable files is written too, so that a resumed run does not try them again.
    tensors = join(packs) if packs else _NOTHING
    path = store.shard_path(folder, job.number)
    store.write_shard(path, manifest.model, tensors, entries, skipped)
    for part in store.parts_in(folder, job.number):
        remove_file(part)


def _resume(
    source: Source, folder: Path, manifest: store.Manifest, job: _Job
) -> tuple[list[dict[str, Tensor]], list[store.Line], list[store.Line]]:
    """Return the packs and lines of finished parts; parts of other inputs are removed."""
    packs, entries, skipped = [], [], []
    fits = True
    for path in store.parts_in(folder, job.number):
        part = store.Shard(path)
        listing = part.listing
        lines = [*listing["entries"], *listing["skipped"]]
        first = len(entries) + len(skipped)
        expected = [source.entry(place) for place in job.places[first : first + len(lines)]]
        fits = fits and listing["model"] == manifest.model
        fits = fits and {_key(line) for line in lines} == {_key(line) for line in expected}
        if not fits:
            remove_file(path)
            continue
        packs += [part.tensors] if len(part) else []
        entries += listing["entries"]
        skipped += listing["skipped"]
    return packs, entries, skipped


def _key(line: store.Line) -> tuple[str, str]:
    return line["id"], line["stamp"]


def _resized(encoder: ImageEncoder, picture: Image.Image) -> np.ndarray:
    """Return a picture as bytes of the model's image size; arrays need no shared memory."""
    return encoder._resized([picture])[0].numpy()  # on the CPU: `prepare` would use the device


@torch.no_grad()
def _pack(
    model: RetrievalModel, kind: store.Kind, items: list[Loaded], dtype: torch.dtype
) -> dict[str, Tensor]:
    values, net = [item.value for item in items], model.index_net()
    if not values:
        return _NOTHING
    if kind == "texts":
        return pack_texts(net, model.text_side(values), dtype)
    if isinstance(values[0], np.ndarray):
        values = torch.from_numpy(np.stack(values))
    dense = [item.dense for item in items if item.dense is not None]
    return pack_images(net, model.image_side(values, dense or None), dtype)
