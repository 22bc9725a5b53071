"""Batches of prompts by number of tokens: prompts of similar length run together."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

Result = TypeVar("Result")
_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 12}


class TokenBatches:
    """Splits prompts into batches of at most `tokens` tokens, padding included."""

    def __init__(
        self, device: torch.device, tokens: int | None = None, rows: int | None = None
    ) -> None:
        """`tokens`: by default as many as suit the device; `rows`: prompts per batch at most."""
        self.tokens = tokens or _TOKENS.get(device.type, _TOKENS["cpu"])
        self.rows = rows

    def run(
        self,
        lengths: Sequence[int],
        work: Callable[[list[int]], Result],
        most_rows: int | None = None,
    ) -> list[tuple[list[int], Result]]:
        """Call `work` with the positions of each batch, the longest first.

        A batch that does not fit into the memory is split, and so are those after it.
        """
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        done: list[tuple[list[int], Result]] = []
        start = 0
        while start < len(order):
            length = max(1, lengths[order[start]])
            limits = [self.tokens // length, *(n for n in (self.rows, most_rows) if n)]
            rows = order[start : start + max(1, min(limits))]
            try:
                done.append((rows, work(rows)))
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                self.tokens = length * len(rows) // 2
                torch.cuda.empty_cache()
                continue
            start += len(rows)
        return done
