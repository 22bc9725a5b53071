"""The loss of segmentation: cross-entropy over the pixels that have a label."""

from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn import functional as F

IGNORED = 255
"""The label of pixels that neither teach nor count."""


def segmentation_loss(
    logits: Float[Tensor, "batch classes height width"],
    labels: Integer[Tensor, "batch height width"],
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the pixels that are not ignored; 0 if all are."""
    total = F.cross_entropy(logits.float(), labels.long(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp_min(1)
