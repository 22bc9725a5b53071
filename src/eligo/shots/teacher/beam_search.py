"""Beam search over sequences of examples, for the teacher and the oracles.

Beams are ranked by the value of the whole sequence. The gain of the last step would prefer a weak
beginning with a large correction.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from eligo import ops
from eligo.errors import InputError

Extend = Callable[[tuple[int, ...], Sequence[int]], Float[Tensor, " candidates"]]
"""Returns the values of a prefix (positions) extended by each of some candidates (positions)."""


class Scored(NamedTuple):
    """A prefix and the values of its extensions."""

    prefix: tuple[int, ...]
    values: Float[Tensor, " candidates"]
    """NaN: not scored (picked before, or the value was NaN)."""


class Beam(NamedTuple):
    """A sequence, its value, and the value after each of its steps."""

    picks: tuple[int, ...]
    value: float
    step_values: tuple[float, ...]


class Search(NamedTuple):
    """The beams of a search, and everything that was scored."""

    beams: list[Beam]
    """The best first; ties go to lower positions."""
    scored: list[Scored]
    """In the order of scoring: the empty prefix first."""


def beam_search(extend: Extend, num_candidates: int, shots: int, beam: int) -> Search:
    """Find the best sequences of `shots` different candidates (fewer if there are not enough).

    Scores `sum_{s < S} n_s (K - s)` sequences, `n_0 = 1`, `n_{s+1} = min(beam, n_s (K - s))`: see
    `num_calls`. A NaN is never chosen.

    >>> value = torch.tensor([1.0, 5.0, 3.0])
    >>> def extend(prefix, candidates):
    ...     return value[list(prefix)].sum() + value[list(candidates)]
    >>> beam_search(extend, 3, 2, 1).beams[0].picks
    (1, 2)
    """
    if beam < 1 or shots < 0:
        raise InputError(f"beam_search: got beam {beam}, shots {shots}; expected >= 1 and >= 0")
    beams, scored = [Beam((), 0.0, ())], []
    for _ in range(min(shots, num_candidates)):
        table = torch.full((len(beams), num_candidates), torch.nan)
        for row, current in enumerate(beams):
            left = [c for c in range(num_candidates) if c not in current.picks]
            table[row, left] = torch.as_tensor(extend(current.picks, left)).float()
            scored.append(Scored(current.picks, table[row]))
        real = ~table.isnan()
        best = ops.top_k(table.flatten(), min(beam, table.numel()), real.flatten()).tolist()
        pairs = [divmod(index, num_candidates) for index in best if index >= 0]
        if not pairs:
            break
        beams = [_extended(beams[row], pick, float(table[row, pick])) for row, pick in pairs]
    return Search(beams, scored)


def num_calls(num_candidates: int, shots: int, beam: int) -> int:
    """Return the number of sequences that a search scores, including the empty one.

    >>> num_calls(32, 6, 5)
    758
    """
    total, width = 1, 1
    for step in range(min(shots, num_candidates)):
        left = num_candidates - step
        total += width * left
        width = min(beam, width * left)
    return total


def _extended(beam: Beam, pick: int, value: float) -> Beam:
    return Beam((*beam.picks, pick), value, (*beam.step_values, value))
