"""A model as ONNX, for other runtimes: fixed height, width and number of words, any batch.

Inputs are numbers as the network sees them (see `onnx.json` beside the file): normalised colours,
normalised depth and where it is known, vectors of words and which are real. An image without depth
has a mask that is all False, one without words likewise: the same answers as without the inputs.
"""

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import eligo
from eligo.errors import EligoError, InputError, MissingExtraError
from eligo.io.files import write_bytes, write_text
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pixels.model.model import MIN_SIZE, PixelsModel
from eligo.pixels.text.batch import TextBatch

MODEL, ABOUT = "model.onnx", "onnx.json"
_OPSET = 18


class Exportable(nn.Module):
    """A model that takes and gives tensors only."""

    def __init__(self, model: PixelsModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        rgb: Float[Tensor, "batch 3 height width"],
        depth: Float[Tensor, "batch 1 height width"],
        depth_mask: Bool[Tensor, "batch 1 height width"],
        words: Float[Tensor, "batch words text_dim"] | None = None,
        word_mask: Bool[Tensor, "batch words"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Logits, and how much each place looks at each word."""
        text = None
        if words is not None and word_mask is not None:
            text = TextBatch(words, word_mask)
        logits, tag_maps, _ = self.model.look(rgb, depth, depth_mask, text)
        return (logits,) if tag_maps is None else (logits, tag_maps)


@dataclass(frozen=True)
class Exported:
    """What was written."""

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
) -> Exported:
    """Write `model.onnx` and `onnx.json`; `num_words` is by default that of its training."""
    if min(height, width) < MIN_SIZE:
        raise InputError(
            f"got {height} x {width} pixels, expected at least {MIN_SIZE} x {MIN_SIZE}"
        )
    config = segmenter.config
    places = config.text.num_words(config.num_classes) if num_words is None else num_words
    if config.guided and places < 1:
        raise InputError(f"num_words: got {places}, expected at least 1")
    if config.guided and config.sam.decoder.top_m is not None:
        raise InputError(
            f"sam.decoder.top_m: got {config.sam.decoder.top_m}, expected none: ONNX has no "
            "operator for the choice of a few words; train a model without it"
        )
    module = Exportable(segmenter.model).eval().cpu()
    arguments = example_inputs(config.text_dim, height, width, places if config.guided else 0)
    names = ["rgb", "depth", "depth_mask", "words", "word_mask"][: len(arguments)]
    with torch.no_grad():
        outputs = ["logits", "tag_maps"][: len(module(*arguments))]
    out = Path(out)
    content = _export(module, arguments, names, outputs)
    write_bytes(out / MODEL, content)
    about: dict[str, Any] = {
        "eligo": eligo.__version__,
        "classes": list(config.classes),
        "inputs": {
            name: {"shape": ["batch", *value.shape[1:]], "dtype": str(value.dtype)[6:]}
            for name, value in zip(names, arguments, strict=True)
        },
        "outputs": outputs,
        "pictures": config.inputs.model_dump(),
        "text": config.text.model_dump(mode="json"),
    }
    if config.guided and config.text.source == "labels":
        about["words"] = list(config.classes)  # of every image, in this order
    write_text(out / ABOUT, json.dumps(about, indent=1) + "\n")
    return Exported(
        str(out / MODEL), str(out / ABOUT), names, outputs, round(len(content) / 1e6, 2)
    )


def example_inputs(
    text_dim: int, height: int, width: int, num_words: int, batch: int = 2
) -> tuple[Tensor, ...]:
    """Random inputs of the exported model."""
    pictures = (
        torch.randn(batch, 3, height, width),
        torch.randn(batch, 1, height, width),
        torch.rand(batch, 1, height, width) < 0.9,
    )
    if not num_words:
        return pictures
    mask = torch.arange(num_words) < torch.randint(1, num_words + 1, (batch, 1))
    return (*pictures, torch.randn(batch, num_words, text_dim), mask)


def _export(
    module: nn.Module,
    arguments: tuple[Tensor, ...],
    names: list[str],
    outputs: list[str],
) -> bytes:
    try:
        import onnxscript  # noqa: F401 (torch needs it and does not bring it)
    except ImportError:
        raise MissingExtraError("onnxscript", "onnx") from None
    free = torch.export.Dim("batch", min=1, max=4096)
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    before = [logger.level for logger in loggers]
    for logger in loggers:  # they tell of every node
        logger.setLevel(logging.ERROR)
    try:
        # Plain attention: the layout that a fused kernel gives its result is lost in translation.
        plain = sdpa_kernel(SDPBackend.MATH)
        with warnings.catch_warnings(), torch.no_grad(), plain:
            warnings.simplefilter("ignore")  # torch's own, about its own modules
            program = torch.onnx.export(
                module, arguments, input_names=names, output_names=outputs,
                dynamic_shapes=tuple({0: free} for _ in arguments), dynamo=True,
                opset_version=_OPSET, external_data=False, verbose=False,
            )  # fmt: skip
            assert program is not None
            return program.model_proto.SerializeToString()
    except Exception as error:  # torch raises a dozen kinds, none of them ours
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise EligoError(f"torch.onnx cannot export this model ({why})") from error
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
