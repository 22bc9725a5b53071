"""Confidence intervals."""

from collections.abc import Hashable, Sequence
from math import sqrt

from eligo.errors import InputError

_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_RESAMPLES = 1000  # drawn at a time


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a proportion.

    >>> low, high = wilson_interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if not 0 <= successes <= trials:
        raise InputError(f"got {successes} successes in {trials} trials")
    if trials == 0:
        return 0.0, 1.0
    share, squared = successes / trials, _Z * _Z
    centre = share + squared / (2 * trials)
    spread = _Z * sqrt(share * (1 - share) / trials + squared / (4 * trials * trials))
    scale = 1 + squared / trials
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # Rounding must not exclude the share, which is an end of the interval at 0 and 1.
    return max(0.0, min(share, low)), min(1.0, max(share, high))


def paired_bootstrap(
    differences: Sequence[Sequence[float]], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean difference of two methods and its 95 % interval over runs and queries.

    `differences[run][query]` is paired: both methods have the same queries. Runs and queries are
    resampled independently; the interval is the percentiles of the means.

    >>> paired_bootstrap([[1.0, 1.0], [1.0, 1.0]], resamples=10)
    (1.0, 1.0, 1.0)
    """
    import numpy as np

    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise InputError(
            f"got differences of shape {values.shape}, expected as many queries in every run"
        )
    runs, queries = values.shape
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for number in range(resamples):
        rows = random.integers(runs, size=runs)
        columns = random.integers(queries, size=queries)
        means[number] = values[rows].mean(0)[columns].mean()
    low, high = np.percentile(means, (2.5, 97.5))
    return float(values.mean()), float(low), float(high)


def bootstrap_means(
    columns: Sequence[Sequence[Sequence[float]]],
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
) -> list[tuple[float, float, float]]:
    """Return the means of `columns[column][run][query]` with their intervals.

    Resampled as in `paired_bootstrap`, once for all columns. Queries of one group are resampled
    together.

    >>> bootstrap_means([[[1.0, 1.0]], [[2.0, 2.0]]], resamples=10)
    [(1.0, 1.0, 1.0), (2.0, 2.0, 2.0)]
    """
    import numpy as np

    values = np.asarray(columns, dtype=np.float64)
    if values.ndim != 3 or not values.size:
        raise InputError(
            f"got columns of shape {values.shape}, expected as many runs and queries in each"
        )
    _, runs, queries = values.shape
    names = range(queries) if groups is None else groups
    if len(names) != queries:
        raise InputError(f"got {len(names)} groups, expected one for each of {queries} queries")
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    group = np.array([number[name] for name in names])
    sizes = np.bincount(group)
    sums = np.stack([np.bincount(group, row) for row in values.reshape(-1, queries)])
    sums = sums.reshape(*values.shape[:2], len(sizes))
    random = np.random.default_rng(seed)
    means = np.empty((len(values), resamples))
    for first in range(0, resamples, _RESAMPLES):
        count = min(_RESAMPLES, resamples - first)
        drawn = random.multinomial(len(number), np.full(len(number), 1 / len(number)), size=count)
        weights = random.multinomial(runs, np.full(runs, 1 / runs), size=count) / runs
        by_run = sums @ drawn.T / (drawn @ sizes)  # (columns, runs, resamples)
        means[:, first : first + count] = np.einsum("crn,nr->cn", by_run, weights)
    edge = 50 * (1 - level)
    low, high = np.percentile(means, (edge, 100 - edge), axis=1)
    return [
        (float(mean), float(start), float(end))
        for mean, start, end in zip(values.mean((1, 2)), low, high, strict=True)
    ]
