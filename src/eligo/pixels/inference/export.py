"""Export to ONNX: a graph that takes frames as a camera gives them, and stands alone.

Colours are uint8, depth is as stored (0 or NaN unknown): normalisation, the depth formula and the
choice of classes are inside. `onnx.json` describes inputs, outputs, classes and words, `words.npy`
holds the vectors of words. Without depth give NaN, without words a mask that is all False: both
give the same result as leaving the input out of `predict`.
"""

import io
import json
import logging
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import eligo
from eligo.errors import EligoError, InputError, MissingExtraError
from eligo.io.files import write_bytes, write_text
from eligo.pixels.config import MIN_SIZE, InputsConfig
from eligo.pixels.data.pictures import normalise_depth, normalise_rgb
from eligo.pixels.inference.frames import best_classes
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch
from eligo.pixels.text.encoders import TableEncoder

MODEL, ABOUT, WORDS = "model.onnx", "onnx.json", "words.npy"
_OPSET = 18
_DEPTHS = {
    "metric": "metres times {scale:g}; 0 and NaN are unknown",
    "png8": "values of an 8-bit file; NaN is unknown, 0 is a value",
    "sun16": "millimetres, (v >> 3) | (v << 13) of the 16 bits of SUN RGB-D's files; 0 and NaN are "
    "unknown",
}


class Exportable(nn.Module):
    """A model that takes and returns tensors only: frames to labels."""

    def __init__(self, model: PixelsModel, inputs: InputsConfig) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(
        self,
        rgb: UInt8[Tensor, "batch height width 3"],
        depth: Float[Tensor, "batch height width"] | None = None,
        words: Float[Tensor, "batch words text_dim"] | None = None,
        word_mask: Bool[Tensor, "batch words"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Return labels, confidence, logits, and the attention of each place to each word."""
        text = z = known = None
        if depth is not None:
            z, known = normalise_depth(depth.unsqueeze(1), self.inputs)
        if words is not None and word_mask is not None:
            text = TextBatch(words, word_mask)
        pixels = normalise_rgb(rgb.permute(0, 3, 1, 2), self.inputs.channel_order)
        logits, tag_maps, _ = self.model.segment(pixels, z, known, text)
        size = (pixels.shape[-2], pixels.shape[-1])
        confidence, labels = best_classes(logits.softmax(1), size)
        outputs = (labels.to(torch.uint8), confidence, logits)
        return outputs if tag_maps is None else (*outputs, tag_maps)


@dataclass(frozen=True)
class Exported:
    """The exported files."""

    model: str
    about: str
    inputs: list[str]
    outputs: list[str]
    megabytes: float


def export_onnx(
    segmenter: Segmenter,
    out: str | Path,
    *,
    height: int,
    width: int,
    num_words: int | None = None,
    words: Sequence[str] = (),
    dynamic: bool = False,
) -> Exported:
    """Write `model.onnx`, `onnx.json` and, for a model that reads words, `words.npy`.

    `num_words` defaults to that of the training. `words` are stored besides the class names and
    the names of the model's own table. `dynamic` allows every multiple of 32 as height and width.
    """
    if min(height, width) < MIN_SIZE:
        raise InputError(
            f"got {height} x {width} pixels, expected at least {MIN_SIZE} x {MIN_SIZE}"
        )
    if dynamic:  # an example, larger than the least
        height, width = 3 * MIN_SIZE, 4 * MIN_SIZE
    config = segmenter.config
    if num_words is None:
        num_words = config.text.num_words(config.num_classes)
    if config.guided and num_words < 1:
        raise InputError(f"num_words: got {num_words}, expected at least 1")
    if config.guided and config.sam.decoder.top_m is not None:
        raise InputError(
            f"sam.decoder.top_m: got {config.sam.decoder.top_m}, expected none: ONNX has no "
            "operator that selects the top words; train a model without it"
        )
    vocabulary = _vocabulary(segmenter, words)
    module = Exportable(deepcopy(segmenter.model), config.inputs).eval().cpu()
    arguments = example_inputs(
        height, width, num_words if config.guided else 0, config.text_dim,
        depth=config.inputs.depth != "none",
    )  # fmt: skip
    names = list(arguments)
    with torch.no_grad():
        found = module(**arguments)
    outputs = ["labels", "confidence", "logits", "tag_maps"][: len(found)]
    out = Path(out)
    content = _export(module, arguments, outputs, dynamic)
    write_bytes(out / MODEL, content)
    about: dict[str, Any] = {
        "eligo": eligo.__version__,
        "classes": list(config.classes),
        "inputs": {name: _described(name, value, dynamic) for name, value in arguments.items()},
        "outputs": {
            name: _described(name, value, dynamic)
            for name, value in zip(outputs, found, strict=True)
        },
    }
    about["inputs"]["rgb"]["values"] = "red, green, blue"
    if dynamic:
        about["inputs"]["rgb"]["height and width"] = "multiples of 32"
    if "depth" in names:
        meaning = _DEPTHS[config.inputs.depth].format(scale=config.inputs.depth_scale)
        about["inputs"]["depth"]["values"] = meaning
    if vocabulary:
        stored, vectors = vocabulary
        buffer = io.BytesIO()
        np.save(buffer, vectors.numpy())
        write_bytes(out / WORDS, buffer.getvalue())
        about["words"] = {"file": WORDS, "names": stored}
        if config.text.source == "labels":  # of every image, in this order
            about["words"]["of every image"] = list(config.classes)
    write_text(out / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    megabytes = round(len(content) / 1e6, 2)
    return Exported(str(out / MODEL), str(out / ABOUT), names, outputs, megabytes)


def _vocabulary(
    segmenter: Segmenter, words: Sequence[str]
) -> tuple[list[str], Float[Tensor, "names dim"]] | None:
    """Names and vectors of the words to store; None if there are none, or it reads no words."""
    encoder = segmenter.encoder
    if encoder is None:
        if words:
            raise InputError("words: this model reads none; leave them out")
        return None
    table = list(encoder.table) if isinstance(encoder, TableEncoder) else []
    names = list(dict.fromkeys((*segmenter.config.classes, *table, *words)))
    return (names, encoder.encode(names).cpu().float()) if names else None


def _described(name: str, value: Tensor, dynamic: bool) -> dict[str, Any]:
    """Shape and type of an input or output, with names of the sides that are free."""
    shape: list[int | str] = ["batch", *value.shape[1:]]
    sides = {"rgb": (1, 2), "logits": (2, 3), "tag_maps": (2, 3), "words": (), "word_mask": ()}
    if dynamic:
        for place, side in zip(sides.get(name, (1, 2)), ("height", "width"), strict=False):
            shape[place] = f"{side} / 8" if name == "tag_maps" else side
    return {"shape": shape, "dtype": str(value.dtype)[6:]}


def example_inputs(
    height: int, width: int, num_words: int, text_dim: int, batch: int = 2, *, depth: bool = True
) -> dict[str, Tensor]:
    """Return random inputs for the exported model."""
    rgb = torch.randint(0, 256, (batch, height, width, 3), dtype=torch.uint8)
    inputs = {"rgb": rgb}
    if depth:
        values = torch.randint(0, 250, (batch, height, width)).float()  # valid in all formats
        inputs["depth"] = values.masked_fill(torch.rand(values.shape) < 0.1, torch.nan)
    if num_words:
        inputs["words"] = torch.randn(batch, num_words, text_dim)
        most = torch.randint(1, num_words + 1, (batch, 1))
        inputs["word_mask"] = torch.arange(num_words) < most
    return inputs


def _export(
    module: nn.Module, arguments: dict[str, Tensor], outputs: list[str], dynamic: bool
) -> bytes:
    try:
        import onnxscript  # noqa: F401 (torch needs it, but does not depend on it)
    except ImportError:
        raise MissingExtraError("onnxscript", "onnx") from None
    free: dict[str, dict[int, Any]] = {
        name: {0: torch.export.Dim("batch", min=1, max=4096)} for name in arguments
    }
    if dynamic:
        for place, side in ((1, "height"), (2, "width")):
            steps = torch.export.Dim(f"{side}_by_32", min=1, max=256)
            for name in ("rgb", "depth"):
                if name in free:
                    free[name][place] = 32 * steps
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    for name in levels:  # they log every node
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        # Plain attention: the export loses the memory layout of a fused kernel's result.
        plain = sdpa_kernel(SDPBackend.MATH)
        with warnings.catch_warnings(), torch.no_grad(), plain:
            warnings.simplefilter("ignore")  # torch warns about its own modules
            program = torch.onnx.export(
                module, kwargs=arguments, input_names=list(arguments), output_names=outputs,
                dynamic_shapes=free, dynamo=True,
                opset_version=_OPSET, external_data=False, verbose=False,
            )  # fmt: skip
            assert program is not None
            return program.model_proto.SerializeToString()
    except Exception as error:  # torch raises many kinds of errors
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise EligoError(f"torch.onnx cannot export this model ({why})") from error
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
