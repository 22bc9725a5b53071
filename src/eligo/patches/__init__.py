"""Which image patches matter to this text?

A text picks its patches, they fold into a few tokens, words and tokens are matched both ways (SEPS,
arXiv 2511.01390; LAPS). `CrossSparseAggrNet` scores all pairs; its parts `TokenSparse`,
`TokenAggregation`, `DualTokenAggregation` and `HRPA` stand alone, and `help()` of each shows its
equations and the way of its tensors. Losses are in `losses`, retrieval metrics in `metrics`.

Names are imported on first use: configs and `--help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eligo.patches.aggregation import DualTokenAggregation, TokenAggregation
    from eligo.patches.hrpa import HRPA
    from eligo.patches.losses import (
        PatchLoss,
        alignment_loss,
        documented_ratio_loss,
        ratio_loss,
        two_pass_loss,
    )
    from eligo.patches.metrics import RetrievalMetrics, coco_folds, retrieval_metrics
    from eligo.patches.net import CrossSparseAggrNet
    from eligo.patches.scores import PatchExplanation, PatchScores
    from eligo.patches.token_sparse import TokenSparse

_HOME = {
    "CrossSparseAggrNet": "net",
    "DualTokenAggregation": "aggregation",
    "HRPA": "hrpa",
    "PatchExplanation": "scores",
    "PatchLoss": "losses",
    "PatchScores": "scores",
    "RetrievalMetrics": "metrics",
    "TokenAggregation": "aggregation",
    "TokenSparse": "token_sparse",
    "alignment_loss": "losses",
    "coco_folds": "metrics",
    "documented_ratio_loss": "losses",
    "ratio_loss": "losses",
    "retrieval_metrics": "metrics",
    "two_pass_loss": "losses",
}
__all__ = [
    "HRPA",
    "CrossSparseAggrNet",
    "DualTokenAggregation",
    "PatchExplanation",
    "PatchLoss",
    "PatchScores",
    "RetrievalMetrics",
    "TokenAggregation",
    "TokenSparse",
    "alignment_loss",
    "coco_folds",
    "documented_ratio_loss",
    "ratio_loss",
    "retrieval_metrics",
    "two_pass_loss",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"eligo.patches.{_HOME[name]}"), name)
    raise AttributeError(f"module 'eligo.patches' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
