"""Frames in memory: arrays or tensors to labels, all on the device of the network.

On a GPU a frame is one launch: normalisation, network and the choice of classes are a CUDA graph
(`eligo.nn.cuda_graphs`) of a frozen copy of the model, recorded at the second frame of a size.
"""

import threading
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.nn.cuda_graphs import GraphedFunction
from eligo.ops._checks import values_are_free
from eligo.pixels.config import MIN_SIZE, InputsConfig
from eligo.pixels.data.pictures import normalise_depth, normalise_rgb
from eligo.pixels.inference.multi_scale import ModelInputs, resized
from eligo.pixels.model.encoder import Stage
from eligo.pixels.model.frozen import frozen
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch
from eligo.selection import Selection

Array = np.ndarray | Tensor
_WORDS_STEP = 8  # words of a captured frame are padded to multiples, so that few graphs are needed


@dataclass(frozen=True, eq=False)
class Segmentation:
    """The segmentation of a frame, or of a batch of frames, on the device of the network."""

    labels: UInt8[Tensor, "*batch height width"]
    """The class of every pixel, from 0."""
    confidence: Float[Tensor, "*batch height width"]
    """The probability of that class."""
    words: tuple[tuple[str, ...], ...]
    """The words of each frame."""
    tag_maps: Float[Tensor, "*batch words map_height map_width"] | None
    """Attention of each place to each word, which sums to 1 over the words. None: no words."""
    word_mask: Bool[Tensor, "*batch words"] | None
    """Which words are real, not padding."""

    def to(self, device: torch.device | str) -> "Segmentation":
        """Return the segmentation on another device; waits for the device that it comes from."""
        maps, real = (None if x is None else x.to(device) for x in (self.tag_maps, self.word_mask))
        labels, confidence = self.labels.to(device), self.confidence.to(device)
        return Segmentation(labels, confidence, self.words, maps, real)

    def frame(self, number: int) -> "Segmentation":
        """Return one frame of a batch."""
        maps, real = (None if x is None else x[number] for x in (self.tag_maps, self.word_mask))
        return Segmentation(
            self.labels[number], self.confidence[number], (self.words[number],), maps, real
        )

    def selection(self) -> Selection | None:
        """Return the words of each frame by attention, best first."""
        if self.tag_maps is None:
            return None
        scores = self.tag_maps.mean((-1, -2))
        return Selection.top_k(scores, scores.shape[-1], self.word_mask)


class FrameRunner:
    """Runs a model on frames; from CUDA graphs on a GPU, unless `graphs` is False."""

    def __init__(
        self, model: PixelsModel, dtype: torch.dtype = torch.float32, *, graphs: bool = True
    ) -> None:
        self.model, self.dtype, self.graphs = model, dtype, graphs
        self._lock = threading.Lock()
        self._watched: list[Tensor] = []  # all weights of the captured model
        self._captured: tuple[Any, GraphedFunction, PixelsModel] | None = None

    def __call__(
        self,
        pixels: UInt8[Tensor, "batch 3 height width"],
        depth: Float[Tensor, "batch 1 height width"] | None,
        depth_mask: Bool[Tensor, "batch 1 height width"] | None,
        text: TextBatch | None,
        *,
        inputs: InputsConfig,
        size: tuple[int, int] | None = None,
    ) -> Segmentation:
        """Segment frames on the device of the model, which is not waited for.

        Without `depth_mask`, depth holds values as stored (`inputs`); with it, normalised ones.
        """
        words = () if text is None else (text.embeddings, text.mask)
        number = text.mask.shape[1] if text is not None else 0
        captured = self.graphs and pixels.is_cuda
        if captured and words:
            extra = -number % _WORDS_STEP
            words = (F.pad(words[0], (0, 0, 0, extra)), F.pad(words[1], (0, extra)))
        vectors, mask = words or (None, None)
        run = self._graphed() if captured else lambda *x, **y: _segment(self.model, *x, **y)
        with torch.no_grad():
            found = run(
                pixels, depth, depth_mask, vectors, mask,
                inputs=inputs, size=size, dtype=self.dtype,
            )  # fmt: skip
        labels, confidence, maps, real = found
        return Segmentation(
            cast("Tensor", labels),
            cast("Tensor", confidence),
            (text.words if text is not None else None) or ((),) * len(pixels),
            None if maps is None else maps[:, :number],
            None if real is None else real[:, :number],
        )

    def memory(self) -> dict[str, int]:
        """Return the number of CUDA graphs, and the bytes that they and their weights hold."""
        if self._captured is None:
            return {"graphs": 0, "bytes": 0}
        _, graphs, copy = self._captured
        shared = {weight.data_ptr() for weight in self.model.parameters()}
        own = sum(x.nbytes for x in copy.parameters() if x.data_ptr() not in shared)
        held = graphs.memory()
        return held | {"bytes": held["bytes"] + own}

    def _graphed(self) -> GraphedFunction:
        """The captured model, made anew if weights were moved or changed."""
        with self._lock:
            if self._captured is None or self._captured[0] != self._stamp():
                weights = [*self.model.parameters(), *self.model.buffers()]
                self._watched = [x for x in weights if not x.is_inference()]  # no version
                copy = frozen(self.model, self.dtype)
                stages = cast("list[Stage]", list(copy.encoder.stages))
                graphs = GraphedFunction(
                    lambda *x, **y: _segment(copy, *x, **y),
                    keep=lambda: [stage.last_tables for stage in stages],
                )
                self._captured = (self._stamp(), graphs, copy)
            return self._captured[1]

    def _stamp(self) -> tuple[int, ...]:
        """Changes when weights are moved or replaced (the first or the last), or any is changed."""
        ends = (next(self.model.parameters()), self.model.head.classifier.weight)
        return (*(x.data_ptr() for x in ends), sum(x._version for x in self._watched))


def _segment(
    model: PixelsModel,
    pixels: Tensor,
    depth: Tensor | None,
    depth_mask: Tensor | None,
    vectors: Tensor | None,
    word_mask: Tensor | None,
    *,
    inputs: InputsConfig,
    size: tuple[int, int] | None,
    dtype: torch.dtype,
) -> tuple[Tensor | None, ...]:
    """Labels, confidence, attention to each word, and which words are real."""
    rgb = normalise_rgb(pixels, inputs.channel_order)
    if depth is not None and depth_mask is None:
        depth, depth_mask = normalise_depth(depth, inputs)
    text = None
    if vectors is not None and word_mask is not None:
        text = TextBatch(vectors, word_mask)
    given = ModelInputs(rgb, depth, depth_mask, text)
    if size is not None:
        given = resized(given, size, antialias=True)
    with torch.autocast(rgb.device.type, dtype, enabled=dtype != torch.float32):
        logits, maps, _ = model.segment(*given)
    confidence, labels = best_classes(logits.softmax(1), (rgb.shape[-2], rgb.shape[-1]))
    real = None if text is None or maps is None else model.real_words(text)
    return labels.to(torch.uint8), confidence, maps, real


def best_classes(
    scores: Float[Tensor, "batch classes rows columns"], size: tuple[int, int]
) -> tuple[Float[Tensor, "batch height width"], Tensor]:
    """Return confidence and class of every pixel in this size.

    Scores are resized class by class, as all of them together may take gigabytes.
    """
    if tuple(scores.shape[-2:]) == size:
        best = scores.max(1)
        return best.values, best.indices
    shape = (scores.shape[0], *size)
    best = torch.full(shape, -1.0, device=scores.device)
    labels = torch.zeros(shape, dtype=torch.int64, device=scores.device)
    for number in range(scores.shape[1]):
        score = F.interpolate(
            scores[:, number : number + 1], size=size, mode="bilinear", align_corners=False
        )[:, 0]
        labels = torch.where(score > best, number, labels)
        best = torch.maximum(best, score)
    return best, labels


def frame_pixels(rgb: Array) -> UInt8[Tensor, "*batch 3 height width"]:
    """Return a frame, or a batch of frames, as a tensor on its device.

    An array is (height, width, 3), a tensor (3, height, width), each with a batch dimension in
    front or without; uint8, or floats from 0 to 1.
    """
    if not isinstance(rgb, np.ndarray | Tensor):
        raise InputError(
            f"rgb: got {type(rgb).__name__}, expected a NumPy array or a tensor; `predict` takes "
            "files and PIL images"
        )
    pixels = rgb if isinstance(rgb, Tensor) else _tensor(rgb)
    if pixels.ndim in (3, 4) and isinstance(rgb, np.ndarray):
        pixels = pixels.movedim(-1, -3)
    if pixels.ndim not in (3, 4) or pixels.shape[-3] != 3 or 0 in pixels.shape:
        expected = "(height, width, 3)" if isinstance(rgb, np.ndarray) else "(3, height, width)"
        raise InputError(
            f"rgb: got shape {tuple(rgb.shape)}, expected {expected}, or a batch of such frames"
        )
    if min(pixels.shape[-2:]) < MIN_SIZE:
        raise InputError(
            f"rgb: got {pixels.shape[-2]} x {pixels.shape[-1]} pixels, expected at least "
            f"{MIN_SIZE} x {MIN_SIZE}; enlarge the image"
        )
    if pixels.is_floating_point():
        if values_are_free(pixels) and not bool(((pixels >= 0) & (pixels <= 1)).all()):
            raise InputError("rgb: got floats outside 0 to 1; divide by 255, or pass uint8")
        return (pixels.float() * 255).round().clamp(0, 255).to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise InputError(f"rgb: got {rgb.dtype}, expected uint8, or floats from 0 to 1")
    return pixels


def frame_depth(
    depth: Array, pixels: UInt8[Tensor, "*batch 3 height width"], inputs: InputsConfig
) -> Float[Tensor, "*batch 1 height width"]:
    """Return the stored depth of frames as a tensor on its device, (height, width) each."""
    if inputs.depth == "none":
        raise InputError("depth: this model was trained without depth (inputs.depth none)")
    if not isinstance(depth, np.ndarray | Tensor):
        raise InputError(f"depth: got {type(depth).__name__}, expected a NumPy array or a tensor")
    expected = (*pixels.shape[:-3], *pixels.shape[-2:])
    if tuple(depth.shape) != expected:
        raise InputError(f"depth: got shape {tuple(depth.shape)}, expected {expected}, as of rgb")
    if isinstance(depth, np.ndarray) and depth.dtype == np.uint16:
        depth = depth.astype(np.int32)  # torch has few operators for uint16
    values = depth if isinstance(depth, Tensor) else _tensor(depth)
    if inputs.depth == "png8" and values.dtype != torch.uint8:
        raise InputError(f"depth: got {depth.dtype}, expected 8 bits (inputs.depth png8)")
    if inputs.depth == "sun16":
        if values.is_floating_point() or values.dtype.itemsize < 2:
            raise InputError(f"depth: got {depth.dtype}, expected 16 bits (inputs.depth sun16)")
        values = values.int()
        values = (values >> 3) | ((values << 13) & 0xFFFF)  # millimetres
    return values.float().unsqueeze(-3)


def _tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor in its memory, or a copy where torch needs one."""
    return torch.from_numpy(np.require(array, requirements=("C", "W")))
