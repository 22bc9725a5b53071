"""Export to ONNX: fixed height, width and number of words, any batch size.

Inputs are those of the network (`onnx.json` describes them): normalised colours, normalised depth
and its mask, word vectors and their mask. For an image without depth or
without words the mask is all False, which gives the same result as leaving the input out.
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
from eligo.pixels.config import MIN_SIZE
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pixels.model.model import PixelsModel
from eligo.pixels.text.batch import TextBatch

MODEL, ABOUT = "model.onnx", "onnx.json"
_OPSET = 18


class Exportable(nn.Module):
    """A model that takes and returns tensors only."""

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
        """Return logits, and the attention of each place to each word."""
        text = None
        if words is not None and word_mask is not None:
            text = TextBatch(words, word_mask)
        logits, tag_maps, _ = self.model.segment(rgb, depth, depth_mask, text)
        return (logits,) if tag_maps is None else (logits, tag_maps)


@dataclass(frozen=True)
class Exported:
    """The exported files."""

    model: str
    about: str
    inputs: list[str]
    outputs: list[str]
    megabytes: float


def export_onnx(
    segmenter: Segmenter, out: str | Path, *, height: int, width: int, num_words: int | None = None
) -> Exported:
    """Write `model.onnx` and `onnx.json`; `num_words` defaults to that of the training."""
    if min(height, width) < MIN_SIZE:
        raise InputError(
            f"got {height} x {width} pixels, expected at least {MIN_SIZE} x {MIN_SIZE}"
        )
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
    module = Exportable(segmenter.model).eval().cpu()
    arguments = example_inputs(config.text_dim, height, width, num_words if config.guided else 0)
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
    megabytes = round(len(content) / 1e6, 2)
    return Exported(str(out / MODEL), str(out / ABOUT), names, outputs, megabytes)


def example_inputs(
    text_dim: int, height: int, width: int, num_words: int, batch: int = 2
) -> tuple[Tensor, ...]:
    """Return random inputs for the exported model."""
    images = (
        torch.randn(batch, 3, height, width),
        torch.randn(batch, 1, height, width),
        torch.rand(batch, 1, height, width) < 0.9,
    )
    if not num_words:
        return images
    mask = torch.arange(num_words) < torch.randint(1, num_words + 1, (batch, 1))
    return (*images, torch.randn(batch, num_words, text_dim), mask)


def _export(
    module: nn.Module, arguments: tuple[Tensor, ...], names: list[str], outputs: list[str]
) -> bytes:
    try:
        import onnxscript  # noqa: F401 (torch needs it, but does not depend on it)
    except ImportError:
        raise MissingExtraError("onnxscript", "onnx") from None
    batch = torch.export.Dim("batch", min=1, max=4096)
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")}
    for name in levels:  # they log every node
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        # Plain attention: the export loses the memory layout of a fused kernel's result.
        plain = sdpa_kernel(SDPBackend.MATH)
        with warnings.catch_warnings(), torch.no_grad(), plain:
            warnings.simplefilter("ignore")  # torch warns about its own modules
            program = torch.onnx.export(
                module, arguments, input_names=names, output_names=outputs,
                dynamic_shapes=tuple({0: batch} for _ in arguments), dynamo=True,
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
