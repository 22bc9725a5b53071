"""How sure a sampled number is."""

from math import sqrt

from eligo.errors import InputError

_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927), good for few trials and for shares near 0 or 1.

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
    # The share lies inside; at 0 and 1 it is an end, which rounding would miss.
    return max(0.0, min(share, low)), min(1.0, max(share, high))
