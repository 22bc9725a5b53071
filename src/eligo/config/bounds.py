"""Bounds of numbers: in the types of configs and flags, and as a check in functions."""

import math
import operator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from eligo.errors import InputError

# Types of config fields.
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Whole = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Bounds:
    """Numbers from `least` to `most`; a flag is `Annotated[int, Bounds(1)]`.

    >>> Bounds(1, 100).check("--scenes", 0)
    Traceback (most recent call last):
    eligo.errors.InputError: --scenes: got 0, expected 1 to 100
    """

    least: int | float = -math.inf
    most: int | float = math.inf
    above: bool = False
    """Whether `least` itself is too small."""

    def check(self, name: str, value: int | float) -> None:
        """Raise an `InputError` with this name if the number is out of bounds."""
        is_low = value <= self.least if self.above else value < self.least
        if is_low or value > self.most or not math.isfinite(value):
            raise InputError(f"{name}: got {value}, expected {self}")

    def __str__(self) -> str:
        if math.isinf(self.least) and math.isinf(self.most):
            return "a finite number"
        if self.above:
            most = "" if math.isinf(self.most) else f", at most {self.most:g}"
            return f"a finite number above {self.least:g}{most}"
        if math.isinf(self.most):
            return f"at least {self.least:g}"
        return f"{self.least:g} to {self.most:.15g}"


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return the value as an int if it is a whole number of at least `least`; else raise."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise InputError(f"{name}: got {value!r}, expected a whole number") from None
    Bounds(least).check(name, count)
    return count
