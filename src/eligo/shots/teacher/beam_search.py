"""Beam search over sequences of examples, for the teacher and the oracles.

Beams are ranked by the value of the whole sequence. The gain of the last step would prefer a weak
beginning with a large correction.

Diverse beam search (Vijayakumar et al., "Diverse Beam Search for Improved Description of Complex
Scenes", AAAI 2018), with the Hamming penalty and one group per beam. At each step, beams are kept
one after the other; the next one maximises, over all extensions e of length s,

    value(e) - diversity * sum_{b kept before} |e and b| / s        (|e and b|: examples in common)

Values that are returned have no penalty. Deviations from the paper: sequences are compared as sets
of examples, since their order matters little to a prompt (the paper compares tokens at the same
position), and a beam may extend any sequence, not only that of its group. Diversity 0 is therefore
the plain search.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from eligo import ops
from eligo.errors import InputError

Extend = Callable[[tuple[int, ...], Sequence[int]], Float[Tensor, " candidates"]]
"""Returns the values of a prefix (positions) extended by each of some candidates (positions)."""
Extension = tuple[tuple[int, ...], list[int]]
"""A prefix, and the candidates to extend it by."""


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


def beam_search(
    extend: Extend, num_candidates: int, shots: int, beam: int, diversity: float = 0.0
) -> Search:
    """Find the best sequences of `shots` different candidates (fewer if there are not enough).

    With `diversity`, a beam loses that much value for every better beam with the same candidates,
    and a part of it for a part of them.

    Scores `sum_{s < S} n_s (K - s)` sequences, `n_0 = 1`, `n_{s+1} = min(beam, n_s (K - s))`: see
    `num_calls`. A NaN is never chosen.

    >>> value = torch.tensor([1.0, 5.0, 3.0])
    >>> def extend(prefix, candidates):
    ...     return value[list(prefix)].sum() + value[list(candidates)]
    >>> beam_search(extend, 3, 2, 1).beams[0].picks
    (1, 2)
    """
    steps = beam_steps(num_candidates, shots, beam, diversity)
    try:
        extensions = next(steps)
        while True:
            extensions = steps.send([extend(*extension) for extension in extensions])
    except StopIteration as end:
        return end.value


def beam_steps(
    num_candidates: int, shots: int, beam: int, diversity: float = 0.0
) -> Generator[list[Extension], Sequence[Float[Tensor, " candidates"]], Search]:
    """The same search for a caller that scores: yields prefixes with the candidates to add.

    Expects the values of each; searches of several queries can then be scored together.
    """
    if beam < 1 or shots < 0:
        raise InputError(f"beam_search: got beam {beam}, shots {shots}; expected >= 1 and >= 0")
    if not 0 <= diversity < math.inf:
        raise InputError(f"beam_search: got diversity {diversity}, expected a number >= 0")
    beams, scored = [Beam((), 0.0, ())], []
    for _ in range(min(shots, num_candidates)):
        table = torch.full((len(beams), num_candidates), torch.nan)
        extensions: list[Extension] = [
            (current.picks, [c for c in range(num_candidates) if c not in current.picks])
            for current in beams
        ]
        values = yield extensions
        for row, (prefix, left) in enumerate(extensions):
            table[row, left] = torch.as_tensor(values[row]).float()
            scored.append(Scored(prefix, table[row]))
        picks = torch.tensor([current.picks for current in beams], dtype=torch.int64)
        best = best_extensions(picks[None], table[None], beam, diversity)[0].tolist()
        pairs = [divmod(index, num_candidates) for index in best if index >= 0]
        if not pairs:
            break
        beams = [_extended(beams[row], pick, float(table[row, pick])) for row, pick in pairs]
    return Search(beams, scored)


def best_extensions(
    picks: Int64[Tensor, "queries beams length"],
    values: Float[Tensor, "queries beams candidates"],
    beam: int,
    diversity: float = 0.0,
) -> Int64[Tensor, "queries kept"]:
    """Return which extensions are the next beams, the best first; -1 where there are no more.

    An extension is its beam times the number of candidates plus its candidate; NaN: not one.

    >>> values = torch.tensor([[[torch.nan, 3.0, 2.0, 1.0], [2.9, torch.nan, 1.0, 2.0]]])
    >>> best_extensions(torch.tensor([[[0], [1]]]), values, 2)  # 0 1, and 1 0: the same set
    tensor([[1, 4]])
    >>> best_extensions(torch.tensor([[[0], [1]]]), values, 2, diversity=2.0)  # 0 1, and 0 2
    tensor([[1, 2]])
    """
    flat, real = values.flatten(1), ~values.isnan().flatten(1)
    kept = min(beam, flat.shape[1])
    if not diversity:
        return ops.top_k(flat, kept, real)
    num_candidates, length = values.shape[2], picks.shape[2] + 1
    held = torch.zeros_like(values, dtype=torch.bool).scatter(2, picks, True)
    objective = flat.double().clamp_min(torch.finfo(torch.float32).min)  # a real -inf is not masked
    objective = objective.masked_fill(~real, -torch.inf)
    chosen = []
    for _ in range(kept):
        best = objective.argmax(1, keepdim=True)  # the first of equals
        none = objective.gather(1, best) == -torch.inf
        chosen.append(torch.where(none, flat.shape[1], best))
        row = (best // num_candidates).unsqueeze(-1).expand(-1, 1, num_candidates)
        examples = held.gather(1, row).squeeze(1).scatter(1, best % num_candidates, True)
        common = (held & examples.unsqueeze(1)).sum(2, keepdim=True) + examples.unsqueeze(1)
        objective = objective - (diversity / length) * common.flatten(1)
        objective = objective.scatter(1, best, -torch.inf)
    # The best first, without the penalty; ties go to lower positions.
    indices = torch.cat(chosen, 1).sort(1).values
    padded = F.pad(flat, (0, 1), value=-torch.inf)
    order = padded.gather(1, indices).sort(dim=1, descending=True, stable=True).indices
    indices = indices.gather(1, order)
    return torch.where(indices == flat.shape[1], -1, indices)


def beam_difference(beams: Iterable[Sequence[object]]) -> float | None:
    """Return the mean share of examples in which two beams differ; None for fewer than two beams.

    >>> beam_difference([("a", "b"), ("b", "a"), ("a", "c")])
    0.3333333333333333
    """
    shares = [1 - len({*a} & {*b}) / len(a) for a, b in combinations(beams, 2) if len(a)]
    return sum(shares) / len(shares) if shares else None


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
