"""Which words guide which pixel?

RGB-D segmentation: DFormerv2, in which depth shapes attention, with the Semantic Alignment Module,
through which every pixel looks at the words of its image. `PixelsModel` is the network, `Segmenter`
the network with its text encoder and class names, `predict` segments two picture files; depth and
words are optional. `SIZES` and `PRESETS` are changes of a `PixelsConfig`.

Rooms: `model` (the network), `text` (words to vectors), `data` (scenes and files), `training`,
`measure` (metrics, evaluation), `inference` (load, predict, export).

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.pixels.config import SIZES, EncoderConfig, PixelsConfig
    from eligo.pixels.inference.config import SegmenterConfig
    from eligo.pixels.inference.predict import PixelsPrediction, predict
    from eligo.pixels.inference.segmenter import Segmenter
    from eligo.pixels.losses import segmentation_loss
    from eligo.pixels.measure.metrics import (
        SegmentationMetrics,
        confusion_matrix,
        segmentation_metrics,
    )
    from eligo.pixels.model.encoder import Encoder
    from eligo.pixels.model.model import PixelsModel, PixelsOutput
    from eligo.pixels.model.official import from_official, to_official
    from eligo.pixels.presets import PRESETS
    from eligo.pixels.text.batch import TextBatch
    from eligo.pixels.training.config import PixelsTrainConfig
    from eligo.pixels.training.task import train_model

_HOME = {
    "PRESETS": "presets",
    "SIZES": "config",
    "Encoder": "model.encoder",
    "EncoderConfig": "config",
    "PixelsConfig": "config",
    "PixelsModel": "model.model",
    "PixelsOutput": "model.model",
    "PixelsPrediction": "inference.predict",
    "PixelsTrainConfig": "training.config",
    "Segmenter": "inference.segmenter",
    "SegmenterConfig": "inference.config",
    "SegmentationMetrics": "measure.metrics",
    "TextBatch": "text.batch",
    "confusion_matrix": "measure.metrics",
    "from_official": "model.official",
    "predict": "inference.predict",
    "segmentation_loss": "losses",
    "segmentation_metrics": "measure.metrics",
    "to_official": "model.official",
    "train_model": "training.task",
}
__all__ = [
    "PRESETS",
    "SIZES",
    "Encoder",
    "EncoderConfig",
    "PixelsConfig",
    "PixelsModel",
    "PixelsOutput",
    "PixelsPrediction",
    "PixelsTrainConfig",
    "SegmentationMetrics",
    "Segmenter",
    "SegmenterConfig",
    "TextBatch",
    "confusion_matrix",
    "from_official",
    "predict",
    "segmentation_loss",
    "segmentation_metrics",
    "to_official",
    "train_model",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
