"""Random numbers that depend on (seed, step, ...) only, not on earlier steps.

All generators are seeded before each step, so a resumed run, a run in more processes and a run that
evaluates more often draw the same numbers.
"""

import random

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """Return a 63-bit hash of integers (splitmix64 over each in turn)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_everything(*numbers: int) -> None:
    """Seed Python, NumPy and torch (all devices in use) from integers."""
    seed = mix(*numbers)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would queue the call, with a stack trace, for each unused device type, which
    # costs a millisecond and leaks memory in every step.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
