"""A trained model as a folder: `config.yaml` and `model.safetensors`, loaded and saved.

The config stores how images become inputs, which words the model reads and how it compares them
with pixels. Checkpoints and runs of `eligo pixels train` can be loaded too.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eligo.config import load_config, save_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.io.files import write_bytes, writing_folder
from eligo.io.reading import reading
from eligo.ops._checks import values_are_free
from eligo.pixels.config import (
    MIN_SIZE,
    InputsConfig,
    PixelsConfig,
    SamConfig,
    SegmenterConfig,
    TableTextConfig,
)
from eligo.pixels.data.pictures import check_depth_range, normalise_depth
from eligo.pixels.inference.frames import (
    Array,
    FrameRunner,
    Segmentation,
    frame_depth,
    frame_pixels,
)
from eligo.pixels.inference.words import FrameWords, Words, joined, listed_by_frame
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch
from eligo.pixels.text.encoders import TextEncoder, build_text_encoder, same_probe
from eligo.pretrained.load import find_model, shipped_model
from eligo.train.weights import build_module, load_weights, save_weights

SHIPPED = "pixels"
"""Name of the model that comes with eligo, for generated rooms."""
_FILES = ("config.yaml", "model.safetensors")
_TABLE, _TABLE_KEY = "words.safetensors", "text.encoder.file"
_HOLDS = (*_FILES, _TABLE)
_MAX_TEXTS = 64  # lists of words whose vectors are kept


class Segmenter:
    """A network, its class names and its text encoder.

    `dtype` is the autocast type of `segment` and `predict` (weights stay in float32). On a GPU they
    run from CUDA graphs, recorded at the second frame of a size; `graphs=False` turns them off.
    Threads may share a segmenter.
    """

    def __init__(
        self,
        config: SegmenterConfig,
        model: PixelsModel,
        encoder: TextEncoder | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        graphs: bool = True,
    ) -> None:
        self.config, self.model, self._encoder = config, model, encoder
        self.runner = FrameRunner(model, dtype, graphs=graphs)
        self._texts: OrderedDict[tuple[Any, ...], TextBatch] = OrderedDict()
        self._lock = threading.Lock()
        self._is_depth_checked = False

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = SHIPPED,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        graphs: bool = True,
    ) -> "Segmenter":
        """Load a model from a folder, checkpoint or run, or by name; default: the shipped model.

        It is in evaluation mode.
        """
        folder = model_folder(name)
        with reading(folder / "config.yaml", "the config of a segmentation model"):
            config = stored_config(folder)
            model = build_module(folder, "model", lambda: PixelsModel(config))
        load_weights(folder, {"model": model})
        return cls(config, model.to(device).eval(), dtype=dtype, graphs=graphs)

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a folder for `from_pretrained`; `dtype` torch.float16 halves it."""
        with writing_folder(folder, marker=_FILES[1], holds=_HOLDS) as temporary:
            save_weights(temporary, {"model": self.model}, dtype)
            config, words = plain_config(self.config), self.config.text.encoder
            if isinstance(words, TableTextConfig) and self.encoder:  # stored with the weights
                write_bytes(temporary / _TABLE, words.file.read_bytes())
                config = config.replace({_TABLE_KEY: Path(_TABLE)})
            save_config(config, temporary / "config.yaml")

    @property
    def encoder(self) -> TextEncoder | None:
        """The text encoder, loaded on first use; None: the network uses no words."""
        if self._encoder is None:
            encoder = text_encoder(self.config)
            _check_probe(self.config, encoder)  # before it is kept
            self._encoder = encoder
        return self._encoder

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.model.parameters()).device

    def text(self, words: Sequence[str], *, sentences: bool = False) -> TextBatch | None:
        """Return words for one image; None for no words.

        A model trained with its class names as words (text.source labels) gets these by default.
        """
        if not words and self.config.guided and self.config.text.source == "labels":
            words, sentences = self._class_names(), False
        if not words:
            return None
        if self.encoder is None:
            raise InputError(
                "tags: this model was trained without words (text.source none, or preset 0); "
                "leave them out"
            )
        device, key = self.device, (tuple(words), sentences, self.device)
        with self._lock:
            if key not in self._texts:
                vectors = self.encoder.encode(words, sentences=sentences).to(device)[None]
                mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=device)
                self._texts[key] = TextBatch(vectors, mask, (tuple(words),), "predicted")
            self._texts.move_to_end(key)
            while len(self._texts) > _MAX_TEXTS:
                self._texts.popitem(last=False)
            return self._texts[key]

    def segment(
        self,
        rgb: Array,
        depth: Array | None = None,
        tags: FrameWords = (),
        *,
        captions: FrameWords = (),
        inputs: InputsConfig | None = None,
        size: tuple[int, int] | None = None,
    ) -> Segmentation:
        """Segment a frame in memory, or a batch of frames; depth and words are optional.

        The result stays on the device of the network, which is not waited for.

        Args:
            rgb: An array (height, width, 3) or a tensor (3, height, width) on any device: uint8,
                or floats from 0 to 1. A batch has one more dimension in front.
            depth: One value per pixel, (height, width); `inputs` gives the unit.
            tags: Names of everything visible, as a list or as one string with commas; for a batch
                one for all frames, or a list of lists.
            captions: Sentences instead of tags, for a model that was trained with captions.
            inputs: How depth is stored, if not as in the training of the model
                (`InputsConfig(depth="metric", depth_scale=1)` for metres).
            size: Height and width to scale frames to for the network (by default `inputs.size`);
                labels keep theirs.

        >>> import numpy as np
        >>> segmenter = Segmenter.from_pretrained()
        >>> frames = np.zeros((2, 96, 128, 3), np.uint8)
        >>> segmenter.segment(frames, tags="wall, floor").labels.shape
        torch.Size([2, 96, 128])
        """
        inputs = inputs or self.config.inputs
        pixels = frame_pixels(rgb)
        values = None if depth is None else frame_depth(depth, pixels, inputs)
        if values is not None and not self._is_depth_checked and values_are_free(values):
            self._is_depth_checked = True  # once: all frames of a camera have one unit
            flags = ("inputs.depth", "inputs.depth_scale")
            check_depth_range(normalise_depth(values, inputs), "depth", inputs, flags)
        size = size or inputs.size
        if size is not None and min(size) < MIN_SIZE:
            raise InputError(f"size: got {size[0]} x {size[1]}, expected at least 32 x 32")
        single = pixels.ndim == 3
        pixels = (pixels[None] if single else pixels).to(self.device, non_blocking=True)
        if values is not None:
            values = (values[None] if single else values).to(self.device, non_blocking=True)
        text = self.frame_text(tags, captions, len(pixels))
        found = self.runner(pixels, values, None, text, inputs=inputs, size=size)
        return found.frame(0) if single else found

    def segment_stream(
        self, frames: Iterable[tuple[Array, Array | None]], tags: Words = (), **options: Any
    ) -> Iterator[Segmentation]:
        """Yield the segmentation of every (rgb, depth) of a stream, with the options of `segment`.

        Frames are read one at a time, as a camera or a folder (`read_frames`) gives them.
        """
        for rgb, depth in frames:
            yield self.segment(rgb, depth, tags, **options)

    def frame_text(self, tags: FrameWords, captions: FrameWords, batch: int) -> TextBatch | None:
        """Return the words of a batch of frames: the same for all, or a list for each."""
        names, sentences = listed_by_frame(tags, batch, ","), listed_by_frame(captions, batch)
        if any(names) and any(sentences):
            raise InputError("got tags and captions, expected one kind of words")
        kind = any(sentences)
        return joined([self.text(each, sentences=kind) for each in (sentences if kind else names)])

    def _class_names(self) -> tuple[str, ...]:
        if not self.config.classes:
            raise InputError(
                "classes: this model was trained with its class names as words (text.source "
                "labels), but its config.yaml has none; write them there, in order"
            )
        return self.config.classes


def model_folder(name: str | Path = SHIPPED) -> Path:
    """Return the folder of a model's files: itself, or the best of a run."""
    if name == SHIPPED:
        return shipped_model(SHIPPED, made_by="eligo pixels train")
    folder = find_model(name, *_FILES)
    for candidate in (folder, folder / "model", folder / "best"):
        if all((candidate / file).is_file() for file in _FILES):
            return candidate
    raise InputError(
        f"no segmentation model in {folder}: expected config.yaml and model.safetensors, as "
        "`eligo pixels train` writes them to <run>/model"
    )


def stored_config(folder: Path) -> SegmenterConfig:
    """Load the config of a model folder or checkpoint, without its training settings."""
    tree, _ = read_yaml(folder / "config.yaml")
    wanted = {key: value for key, value in tree.items() if key in SegmenterConfig.model_fields}
    config = load_config(SegmenterConfig, wanted)
    words = config.text.encoder
    is_beside = (folder / _TABLE).is_file()  # else a training's own file of that name
    if isinstance(words, TableTextConfig) and words.file == Path(_TABLE) and is_beside:
        config = config.replace({_TABLE_KEY: folder / _TABLE})
    return config


def plain_config(config: SegmenterConfig) -> SegmenterConfig:
    """Return a config without its training settings."""
    dumped = config.model_dump(mode="json")
    return load_config(SegmenterConfig, {key: dumped[key] for key in SegmenterConfig.model_fields})


def text_encoder(config: SegmenterConfig) -> TextEncoder | None:
    """Load the text encoder of a config; None if the network uses no words."""
    if not config.guided:
        return None
    encoder = build_text_encoder(config.text.encoder, config.classes)
    if encoder.dim != config.text_dim:
        raise InputError(
            f"text_dim: got {config.text_dim}, expected {encoder.dim}, the width of the "
            f"{config.text.encoder.kind} encoder's vectors"
        )
    return encoder


def check_sam_settings(where: Path, stored: PixelsConfig, wanted: Mapping[str, Any]) -> None:
    """Raise if a model does not compare pixels and words as `wanted`.

    `wanted` are dotted keys, as `sam.decoder.use_cosine`: these settings are part of the weights.
    """
    no_words = not (stored.sam.encoder.stages or stored.sam.decoder.stages)
    if wanted and no_words and not any(key.endswith(".stages") for key in wanted):
        raise InputError(
            f"{where}: its weights were trained without words (preset 0), got {', '.join(wanted)}; "
            "leave those flags out, or train a model with words"
        )
    for key, value in wanted.items():
        actual: Any = stored
        for part in key.split("."):
            actual = getattr(actual, part)
        if actual != value:
            raise InputError(
                f"{where}: its weights were trained with {key} {actual}, got {value}; leave that "
                "flag out, or train a model with it"
            )


def sam_settings(sam: SamConfig) -> dict[str, Any]:
    """Return how pixels and words are compared, by dotted key."""
    settings: dict[str, Any] = {"sam.form": sam.form}
    for side, config in (("encoder", sam.encoder), ("decoder", sam.decoder)):
        for name in ("use_cosine", "learnable_temp", "logit_init", "stages"):
            settings[f"sam.{side}.{name}"] = getattr(config, name)
    return settings


def _check_probe(config: SegmenterConfig, encoder: TextEncoder | None) -> None:
    """Raise if the text encoder (or its tokenizer) is not the one of the training."""
    if encoder is None or config.text_probe is None:
        return
    if not same_probe(encoder.probe() or (), config.text_probe):
        name = getattr(encoder, "name", config.text.encoder.kind)
        raise InputError(
            f"text.encoder: {name} gives other vectors than the text encoder that this model was "
            "trained with (other weights, or another tokenizer); put that one back, or write its "
            "folder as text.encoder.model into the model's config.yaml"
        )
