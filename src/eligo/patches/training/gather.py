"""Gather features of all processes, with gradient: negatives come from the whole batch.

Every process scores its own images against all texts. Gradients of gathered texts go back to their
process; those of gathered scores do not, as every process computes its own. Summed over the
processes the gradients are those of one process.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F


class Peers:
    """The processes of the run; with one process every method returns its input."""

    def __init__(self) -> None:
        running = dist.is_available() and dist.is_initialized()
        self.count = dist.get_world_size() if running else 1
        self.index = dist.get_rank() if running else 0

    def rows(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, equally many; only this process's have a gradient."""
        if self.count == 1:
            return own
        parts = _gathered(own.detach())
        parts[self.index] = own
        return torch.cat(parts)

    def texts(
        self, words: Float[Tensor, "texts words dim"], mask: Bool[Tensor, "texts words"]
    ) -> tuple[Float[Tensor, "all_texts all_words dim"], Bool[Tensor, "all_texts all_words"]]:
        """Return the words of all processes, padded to the longest; all have a gradient."""
        if self.count == 1:
            return words, mask
        longest = torch.tensor(mask.shape[1], device=mask.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        padding = int(longest) - mask.shape[1]
        words, mask = F.pad(words, (0, 0, 0, padding)), F.pad(mask, (0, padding))
        shared = _Shared.apply(words, self.index)
        assert isinstance(shared, Tensor)
        return shared, torch.cat(_gathered(mask.to(torch.uint8))).bool()


def _gathered(own: Tensor) -> list[Tensor]:
    own = own.contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return parts


class _Shared(torch.autograd.Function):
    """All-gather whose backward sums gradients over processes and returns this process's part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, index: int) -> Tensor:
        ctx.rows = slice(index * len(own), (index + 1) * len(own))
        return torch.cat(_gathered(own))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total[ctx.rows], None
