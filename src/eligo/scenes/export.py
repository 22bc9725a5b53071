"""Export scenes to files in common formats.

Files are complete or absent. An interrupted export is continued by running it again; `export.json`
describes the folder.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import eligo
from eligo.errors import InputError, OutputError
from eligo.io.files import clear_unfinished, is_unused, write_bytes, write_text
from eligo.io.locks import one_writer
from eligo.io.reading import read_json
from eligo.scenes.config import ExportConfig
from eligo.scenes.dataset import SceneDataset, SceneItem, SceneText, scene_texts
from eligo.scenes.formats import FORMATS, Choices, Encode
from eligo.scenes.graph import SPLITS, Split, draw_scenes
from eligo.train.shards import Engine, map_shards

MANIFEST = "export.json"
_MAY_GROW = SPLITS
_CHUNK_PIXELS = 64 * 336 * 336  # scenes of this many pixels are rendered together
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class ExportResult:
    """Result of an export."""

    out: str
    scenes: int
    pictures_written: int
    pictures_found: int
    """Pictures that an earlier run had written."""
    index_files: list[str]
    """The text files about all of them."""


def export_scenes(
    config: ExportConfig,
    out: str | Path,
    on_progress: Callable[[int], None] | None = None,
    *,
    engine: Engine = "local",
    num_workers: int = 1,
) -> ExportResult:
    """Write scenes to a new folder, or finish what an earlier call began there.

    `on_progress` receives the number of finished scenes. With the engine "ray", `num_workers`
    processes write; all must see the folder. The files do not depend on the engine.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    try:
        with one_writer(out):
            _begin(config, out)
            return _export(config, out, engine, num_workers, on_progress)
    except OSError as error:
        why = error.__cause__ or error
        raise OutputError(
            f"{out}: the export stopped ({why}); free some space or choose another folder, "
            "then run it again: it continues"
        ) from error


def _begin(config: ExportConfig, out: Path) -> None:
    """Refuse a folder that holds something else; otherwise write the manifest."""
    manifest = out / MANIFEST
    if manifest.exists():
        _refuse_another(manifest, config)
        clear_unfinished(out)
    elif not is_unused(out):
        raise InputError(f"{out} holds other files and no export; choose a new or empty folder")
    content = {"eligo": eligo.__version__, "config": config.model_dump(mode="json")}
    write_text(manifest, json.dumps(content, indent=2))


def _refuse_another(manifest: Path, config: ExportConfig) -> None:
    try:
        saved = read_json(manifest)
        there = {"eligo": saved["eligo"], **_flat(saved["config"])}
        for split in _MAY_GROW:
            if not isinstance(there[split], int):
                raise TypeError(f"{split} is {there[split]!r}, no number of scenes")
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{manifest}: not the manifest of an export ({error!r})") from None
    here = {"eligo": eligo.__version__, **_flat(config.model_dump(mode="json"))}
    changed = [
        f"{key} {there.get(key)!r} there, {value!r} now"
        for key, value in here.items()
        if there.get(key) != value and not (key in _MAY_GROW and there.get(key, 0) < value)
    ]
    if changed:
        raise InputError(
            f"{manifest.parent} holds another export ({'; '.join(changed)}); choose another "
            "folder, or remove this one (only more scenes can be added to it)"
        )


def _export(
    config: ExportConfig,
    out: Path,
    engine: Engine,
    num_workers: int,
    on_progress: Callable[[int], None] | None,
) -> ExportResult:
    chunks = list(_chunks(config))
    num_done = list(accumulate(len(chunk.scenes) for chunk in chunks))
    folder = out.resolve()  # a worker may have another working directory
    results = map_shards(
        lambda: lambda chunk: _export_chunk(config, folder, chunk),
        chunks,
        engine=engine,
        num_workers=num_workers,
        keep_going=False,
        on_done=lambda count: on_progress(num_done[count - 1]) if on_progress else None,
    )
    layout, choices = FORMATS[config.format], _choices(config)
    texts: dict[Split, list[SceneText]] = {split: [] for split in config.num_scenes}
    written = found = 0
    for chunk, result in zip(chunks, results, strict=True):
        assert isinstance(result, _Written)  # a failure would have been raised
        texts[chunk.split] += result.texts
        written, found = written + result.num_written, found + result.num_found
    index = dict(layout.index(choices, texts))
    for path, content in index.items():
        write_text(out / path, content)
    return ExportResult(str(out), num_done[-1], written, found, list(index))


class _Chunk(NamedTuple):
    """The shard of an export: scenes that are rendered together."""

    split: Split
    scenes: range


class _Written(NamedTuple):
    """Result of a chunk."""

    texts: list[SceneText]
    num_written: int
    num_found: int


def _export_chunk(config: ExportConfig, out: Path, chunk: _Chunk) -> _Written:
    """Write the missing pictures of a chunk."""
    graph = draw_scenes(config.scenes, chunk.split, chunk.scenes)
    texts = scene_texts(graph, config.num_questions, config.num_captions)
    layout, choices = FORMATS[config.format], _choices(config)
    files = [layout.pictures(choices, text) for text in texts]
    missing = [
        {path: encode for path, encode in pictures.items() if not _is_written(out / path)}
        for pictures in files
    ]
    with ThreadPoolExecutor(_THREADS) as pool:
        items = _render(config, chunk, missing)
        for future in [pool.submit(_write_pictures, out, *task) for task in items]:
            future.result()
    num_written = sum(map(len, missing))
    return _Written(texts, num_written, sum(map(len, files)) - num_written)


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _choices(config: ExportConfig) -> Choices:
    return Choices(config.scenes, config.image, config.depth)


def _chunks(config: ExportConfig) -> Iterator[_Chunk]:
    pixels = config.scenes.height * config.scenes.width
    step = max(1, min(256, _CHUNK_PIXELS // pixels))
    for split, size in config.num_scenes.items():
        for start in range(0, size, step):
            yield _Chunk(split, range(start, min(start + step, size)))


def _render(
    config: ExportConfig, chunk: _Chunk, missing: list[dict[str, Encode]]
) -> list[tuple[SceneItem, dict[str, Encode]]]:
    """Render the scenes of a chunk that lack pictures, and return them with the missing files."""
    lacking = [(index, files) for index, files in zip(chunk.scenes, missing, strict=True) if files]
    if not lacking:
        return []
    world = SceneDataset(
        config.scenes,
        chunk.split,
        chunk.scenes.stop,
        num_questions=0,
        num_captions=0,
        sensor=config.sensor,
    )
    items = world.__getitems__([index for index, _ in lacking])
    return [(item, files) for item, (_, files) in zip(items, lacking, strict=True)]


def _write_pictures(out: Path, item: SceneItem, files: dict[str, Encode]) -> None:
    for path, encode in files.items():
        # Not synced, as that takes longer than rendering: the next run rewrites empty files.
        write_bytes(out / path, encode(item), sync=False)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
