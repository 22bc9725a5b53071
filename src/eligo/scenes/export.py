"""Scenes as files, in the formats that people have: to try readers, other tools, other libraries.

What is there is whole. A run that was stopped is continued by running it again; `export.json`
remembers what the folder is.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

import eligo
from eligo.config import Config
from eligo.errors import EligoError, InputError
from eligo.files import clear_unfinished, writing
from eligo.scenes.config import SceneConfig
from eligo.scenes.dataset import SceneDataset, SceneItem, SceneText, scene_texts
from eligo.scenes.formats import FORMATS, Choices, Encode
from eligo.scenes.graph import SPLITS, Split, draw_scenes

MANIFEST = "export.json"
_MAY_GROW = SPLITS
_CHUNK_PIXELS = 64 * 336 * 336  # scenes of this many pixels are rendered together
_THREADS = min(4, os.cpu_count() or 1)


class ExportConfig(Config):
    """What to write."""

    task: Literal["scenes.export"] = "scenes.export"
    """Which kind of config this is."""
    format: Literal["vqa", "captions", "nyu", "sun", "jsonl"] = "jsonl"
    """VQAv2 questions, Karpathy-split captions, NYUDepthv2 or SUN RGB-D folders, plain JSON lines
    with everything."""
    scenes: SceneConfig = SceneConfig()
    """The world."""
    train: int = Field(default=1000, ge=0, lt=1_000_000)
    """Scenes of the training split."""
    validation: int = Field(default=200, ge=0, lt=1_000_000)
    """Scenes of the validation split."""
    test: int = Field(default=200, ge=0, lt=1_000_000)
    """Scenes of the test split."""
    questions: int = Field(default=8, ge=0, le=256)
    """Questions on each scene (vqa, jsonl)."""
    captions: int = Field(default=5, ge=0, le=64)
    """Sparse captions of each scene; with any, there is a dense one too (captions, jsonl)."""
    image: Literal["jpg", "png"] = "jpg"
    """File format of the images; png loses nothing."""
    depth: Literal["metric", "png8"] = "metric"
    """16-bit millimetres, or 8 bits with 255 for ten metres (nyu, jsonl; sun has its own)."""
    sensor: bool = False
    """Depth as a sensor gives it, with noise and holes (nyu, sun, jsonl)."""

    @model_validator(mode="after")
    def _check(self) -> "ExportConfig":
        if not self.train + self.validation + self.test:
            raise ValueError("nothing to export: train, validation and test are all 0")
        if self.format == "sun" and self.depth != "metric":
            raise ValueError(f"sun has a depth encoding of its own, got depth {self.depth}")
        if self.scenes.painted and (self.num_questions or self.num_captions):
            raise ValueError(
                "nobody can speak of scenes with painted objects: "
                "set scenes.painted to 0, or both questions and captions"
            )
        return self

    @property
    def num_questions(self) -> int:
        """Per scene, 0 where the format has none."""
        return self.questions if FORMATS[self.format].has_questions else 0

    @property
    def num_captions(self) -> int:
        """Per scene, 0 where the format has none."""
        return self.captions if FORMATS[self.format].has_captions else 0

    @property
    def num_scenes(self) -> dict[Split, int]:
        """Of the splits that are not empty."""
        sizes = (self.train, self.validation, self.test)
        return {split: size for split, size in zip(SPLITS, sizes, strict=True) if size}

    def smoke(self) -> "ExportConfig":
        """The same in small."""
        return self.replace({split: min(2, getattr(self, split)) for split in SPLITS})


@dataclass(frozen=True)
class ExportResult:
    """What an export did."""

    out: str
    scenes: int
    pictures_written: int
    pictures_found: int
    """Those that an earlier run had written."""
    index_files: list[str]
    """The text files about all of them."""


def export_scenes(
    config: ExportConfig, out: str | Path, on_progress: Callable[[int], None] | None = None
) -> ExportResult:
    """Write scenes to a new folder, or finish what an earlier call began there.

    `on_progress` hears how many scenes are done.
    """
    out = Path(out)
    try:
        _begin(config, out)
        return _export(config, out, on_progress)
    except OSError as error:
        why = error.__cause__ or error
        raise EligoError(
            f"{out}: the export stopped ({why}); make room or choose another folder, "
            "then run it again: it continues"
        ) from error


def _begin(config: ExportConfig, out: Path) -> None:
    """Refuse a folder that holds something else; otherwise leave the manifest in it."""
    manifest = out / MANIFEST
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out names a folder")
    if manifest.exists():
        _refuse_another(manifest, config)
        clear_unfinished(out)
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} holds other files and no export; choose a new or empty folder")
    about = {"eligo": eligo.__version__, "config": config.model_dump(mode="json")}
    _write(manifest, json.dumps(about, indent=2).encode())


def _refuse_another(manifest: Path, config: ExportConfig) -> None:
    try:
        saved = json.loads(manifest.read_text(encoding="utf-8"))
        there = {"eligo": saved["eligo"], **_flat(saved["config"])}
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
    config: ExportConfig, out: Path, on_progress: Callable[[int], None] | None
) -> ExportResult:
    layout = FORMATS[config.format]
    choices = Choices(config.scenes, config.image, config.depth)
    texts: dict[Split, list[SceneText]] = {split: [] for split in config.num_scenes}
    written = found = done = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        pending: list[Future[None]] = []
        for split, chunk in _chunks(config):
            graph = draw_scenes(config.scenes, split, chunk)
            said = scene_texts(graph, config.num_questions, config.num_captions)
            texts[split] += said
            files = [layout.pictures(choices, text) for text in said]
            missing = [
                {path: make for path, make in wanted.items() if not (out / path).exists()}
                for wanted in files
            ]
            written += sum(map(len, missing))
            found += sum(map(len, files)) - sum(map(len, missing))
            items = _render(config, split, chunk, missing)
            # The chunk before this one was encoded while this one was rendered.
            _finish(pending)
            pending = [pool.submit(_write_pictures, out, *task) for task in items]
            done += len(chunk)
            if on_progress is not None:
                on_progress(done)
        _finish(pending)
    index = dict(layout.index(choices, texts))
    for path, content in index.items():
        _write(out / path, content.encode())
    return ExportResult(str(out), done, written, found, list(index))


def _chunks(config: ExportConfig) -> Iterator[tuple[Split, range]]:
    pixels = config.scenes.height * config.scenes.width
    step = max(1, min(256, _CHUNK_PIXELS // pixels))
    for split, size in config.num_scenes.items():
        for start in range(0, size, step):
            yield split, range(start, min(start + step, size))


def _render(
    config: ExportConfig, split: Split, chunk: range, missing: list[dict[str, Encode]]
) -> list[tuple[SceneItem, dict[str, Encode]]]:
    """The scenes of a chunk that lack pictures, with what they lack."""
    lacking = [(index, files) for index, files in zip(chunk, missing, strict=True) if files]
    if not lacking:
        return []
    world = SceneDataset(
        config.scenes, split, chunk.stop, num_questions=0, num_captions=0, sensor=config.sensor
    )
    items = world.__getitems__([index for index, _ in lacking])
    return [(item, files) for item, (_, files) in zip(items, lacking, strict=True)]


def _write_pictures(out: Path, item: SceneItem, files: dict[str, Encode]) -> None:
    for path, make in files.items():
        _write(out / path, make(item))


def _finish(pending: list[Future[None]]) -> None:
    for future in pending:
        future.result()


def _write(path: Path, content: bytes) -> None:
    with writing(path) as temporary:
        temporary.write_bytes(content)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
