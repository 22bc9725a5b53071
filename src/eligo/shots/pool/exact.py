"""Every vector, looked at: exact, in chunks, on any device."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops

_CHUNK = 65_536  # rows whose products are held at a time


class ExactStore:
    """Vectors by slot, in one tensor that grows by doubling."""

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.vectors = torch.zeros(0, dim, dtype=dtype, device=device)

    def add(self, slots: Int[Tensor, " new"], vectors: Float[Tensor, "new dim"]) -> None:
        """Put vectors into these slots."""
        if not len(slots):
            return
        needed, have = int(slots.max()) + 1, len(self.vectors)
        if needed > have:
            # The first time exactly what is needed: most pools never grow.
            size = needed if not have else max(needed, 2 * have)
            grown = self.vectors.new_zeros(size, self.vectors.shape[1])
            grown[:have] = self.vectors
            self.vectors = grown
        self.vectors[slots.to(self.vectors.device)] = vectors.to(self.vectors)

    def remove(self, slots: Int[Tensor, " gone"]) -> None:
        """Nothing to do: the index no longer allows these slots."""

    def search(
        self, queries: Float[Tensor, "queries dim"], k: int, allowed: Bool[Tensor, " slots"]
    ) -> tuple[Int[Tensor, "queries k"], Float[Tensor, "queries k"]]:
        """The k best allowed slots of each query and their products; chunk by chunk."""
        queries = queries.to(self.vectors.device).float()
        slots = queries.new_full((len(queries), 0), -1, dtype=torch.int64)
        values = queries.new_zeros((len(queries), 0))
        for start in range(0, len(allowed), _CHUNK):
            mask = allowed[start : start + _CHUNK].to(queries.device).expand(len(queries), -1)
            found = queries @ self.vectors[start : start + mask.shape[1]].float().T
            best = ops.top_k(found, min(k, mask.shape[1]), mask)
            slots = torch.cat([slots, torch.where(best < 0, -1, best + start)], 1)
            values = torch.cat([values, ops.gather(found, best)], 1)
            # Earlier chunks stand first, so ties still go to the lowest slot.
            order = ops.top_k(values, min(k, values.shape[1]), slots >= 0)
            slots = ops.gather(slots, order).masked_fill(order < 0, -1)
            values = ops.gather(values, order)
        return slots, values

    @property
    def num_bytes(self) -> int:
        """What the vectors take."""
        return self.vectors.nbytes
