"""The few modules that several families share.

A module whose parameters must not be decayed names them in `no_weight_decay`; one whose
parameters must stay in bounds has `project_()`. The training loop honours both.
"""

from eligo.nn.cross_attention import CrossAttention
from eligo.nn.precision import as_exact_as, full_precision, without_autocast
from eligo.nn.similarity_scale import SimilarityScale
from eligo.nn.watching import watching

__all__ = [
    "CrossAttention",
    "SimilarityScale",
    "as_exact_as",
    "full_precision",
    "watching",
    "without_autocast",
]
