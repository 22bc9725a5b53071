"""Which words guide which pixel?

RGB-D segmentation: DFormerv2, in which depth shapes attention, with the Semantic Alignment Module,
through which every pixel looks at the words of its image. `PixelsModel` is the whole; depth and
words are optional. `SIZES` and `PRESETS` are changes of a `PixelsConfig`.

Names are imported on first use: configs and `--help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eligo.pixels.config import SIZES, EncoderConfig, PixelsConfig
    from eligo.pixels.encoder import Encoder
    from eligo.pixels.losses import segmentation_loss
    from eligo.pixels.metrics import SegmentationMetrics, confusion_matrix, segmentation_metrics
    from eligo.pixels.model import PixelsModel, PixelsOutput
    from eligo.pixels.official import from_official, to_official
    from eligo.pixels.presets import PRESETS
    from eligo.pixels.text_batch import TextBatch

_HOME = {
    "PRESETS": "presets",
    "SIZES": "config",
    "Encoder": "encoder",
    "EncoderConfig": "config",
    "PixelsConfig": "config",
    "PixelsModel": "model",
    "PixelsOutput": "model",
    "SegmentationMetrics": "metrics",
    "TextBatch": "text_batch",
    "confusion_matrix": "metrics",
    "from_official": "official",
    "segmentation_loss": "losses",
    "segmentation_metrics": "metrics",
    "to_official": "official",
}
__all__ = [
    "PRESETS",
    "SIZES",
    "Encoder",
    "EncoderConfig",
    "PixelsConfig",
    "PixelsModel",
    "PixelsOutput",
    "SegmentationMetrics",
    "TextBatch",
    "confusion_matrix",
    "from_official",
    "segmentation_loss",
    "segmentation_metrics",
    "to_official",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"eligo.pixels.{_HOME[name]}"), name)
    raise AttributeError(f"module 'eligo.pixels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
