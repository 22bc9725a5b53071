"""Modules that several families share.

A module lists parameters without weight decay in `no_weight_decay`, and puts parameters back into
their bounds in `project_()`; the training loop uses both.
"""

from eligo.nn.contexts import allow_tf32_for, full_precision, record_outputs, without_autocast
from eligo.nn.cross_attention import CrossAttention
from eligo.nn.similarity_scale import SimilarityScale

__all__ = [
    "CrossAttention", "SimilarityScale", "allow_tf32_for", "full_precision", "record_outputs",
    "without_autocast",
]  # fmt: skip
