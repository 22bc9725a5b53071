"""Which image patches matter to this text?

A text picks its patches, they fold into a few tokens, words and tokens are matched both ways (SEPS,
arXiv 2511.01390; LAPS). `CrossSparseAggrNet` scores all pairs; its parts `TokenSparse`,
`TokenAggregation`, `DualTokenAggregation` and `HRPA` stand alone, and `help()` of each shows its
equations and the way of its tensors. `RetrievalModel` is the network with its encoders, `predict`
opens up one image and one text.

Rooms: `match` (patches and words to scores), `kernels` (the same, fast), `data` (scenes and files),
`training`, `measure` (metrics, evaluation), `exam`, `inference` (predict, convert, time),
`retrieval` (an index and its search, pooling).

Names are imported on first use: configs and `--help` need no torch.
"""

from typing import TYPE_CHECKING

from eligo.lazy import lazy_names

if TYPE_CHECKING:
    from eligo.patches.inference.predict import PatchPrediction, predict
    from eligo.patches.losses import (
        PatchLoss,
        alignment_loss,
        documented_ratio_loss,
        ratio_loss,
        two_pass_loss,
    )
    from eligo.patches.match.aggregation import DualTokenAggregation, TokenAggregation
    from eligo.patches.match.hrpa import HRPA
    from eligo.patches.match.net import CrossSparseAggrNet
    from eligo.patches.match.scores import PatchExplanation, PatchScores
    from eligo.patches.match.token_sparse import TokenSparse
    from eligo.patches.measure.metrics import RetrievalMetrics, coco_folds, retrieval_metrics
    from eligo.patches.model import RetrievalModel

_HOME = {
    "CrossSparseAggrNet": "match.net",
    "DualTokenAggregation": "match.aggregation",
    "HRPA": "match.hrpa",
    "PatchExplanation": "match.scores",
    "PatchLoss": "losses",
    "PatchPrediction": "inference.predict",
    "PatchScores": "match.scores",
    "RetrievalMetrics": "measure.metrics",
    "RetrievalModel": "model",
    "TokenAggregation": "match.aggregation",
    "TokenSparse": "match.token_sparse",
    "alignment_loss": "losses",
    "coco_folds": "measure.metrics",
    "documented_ratio_loss": "losses",
    "predict": "inference.predict",
    "ratio_loss": "losses",
    "retrieval_metrics": "measure.metrics",
    "two_pass_loss": "losses",
}
__all__ = [
    "HRPA",
    "CrossSparseAggrNet",
    "DualTokenAggregation",
    "PatchExplanation",
    "PatchLoss",
    "PatchPrediction",
    "PatchScores",
    "RetrievalMetrics",
    "RetrievalModel",
    "TokenAggregation",
    "TokenSparse",
    "alignment_loss",
    "coco_folds",
    "documented_ratio_loss",
    "predict",
    "ratio_loss",
    "retrieval_metrics",
    "two_pass_loss",
]

__getattr__, __dir__ = lazy_names(__name__, _HOME)
