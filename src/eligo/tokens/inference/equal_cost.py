"""Baselines at equal cost: how much may a method keep, so that it spends what the others spend?

What counts is language model plus selector. A method that looks at attention inside the language
model pays for the layers before its cut, so it keeps fewer tokens than one that stands before it;
where even one token is too dear, it gets its cheapest setting and its true cost is shown.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from eligo.tokens.cost.plan_cost import plan_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.methods import Method, proposals
from eligo.tokens.plan import Cut, Plan, Stage1

CLOSE = 0.01
"""Costs that differ by no more than this are equal."""
_FIRST_CUTS = (2, 1, 3)  # FastV's first, then its neighbours
_PYRAMIDS = ((1 / 4, 1 / 2, 3 / 4), (1 / 12, 1 / 4, 1 / 2), (1 / 6, 1 / 3, 2 / 3))


@dataclass(frozen=True)
class Arrangement:
    """A method and where it stands; one number then says how much it keeps."""

    method: Method
    layers: tuple[int, ...] = ()
    """Cuts; none: before the language model."""

    def plan(self, kept: int, supply: int) -> Plan:
        """`kept` of `supply` tokens at the first place, the same share again at every later one."""
        if not self.layers:
            return Plan(Stage1(self.method, kept))
        budgets = [
            max(1, round(supply * (kept / supply) ** power))
            for power in range(1, len(self.layers) + 1)
        ]
        return Plan(
            cuts=[Cut(at, self.method, left) for at, left in zip(self.layers, budgets, strict=True)]
        )

    @property
    def name(self) -> str:
        """For people."""
        options = self.method.model_dump(exclude={"name"}, exclude_defaults=True)
        told = [f"{key}={value}" for key, value in options.items()]
        told += [f"layer {'/'.join(map(str, self.layers))}"] if self.layers else []
        return f"{self.method.name} ({', '.join(told)})" if told else self.method.name


@dataclass(frozen=True)
class Matched:
    """An arrangement that spends what it may."""

    arrangement: Arrangement
    plan: Plan
    spent: float
    """Of what it may; within `CLOSE` of 1 if the match is fair."""

    @property
    def is_close(self) -> bool:
        """Whether the match is fair."""
        return abs(self.spent - 1) <= CLOSE


def spending(shape: HostShape, plan: Plan, text: int) -> float:
    """FLOPs of language model and selector."""
    cost = plan_cost(shape, plan, text)
    return cost.llm + (cost.selector or 0.0)


def match(arrangement: Arrangement, shape: HostShape, text: int, allowed: float) -> Matched:
    """The plan that spends nearest to `allowed` FLOPs."""
    supply = shape.vision
    assert supply is not None  # the exam's host has images of one size
    low, high = 1, supply
    while low < high:  # the most that does not exceed it: spending rises with what is kept
        middle = (low + high + 1) // 2
        if spending(shape, arrangement.plan(middle, supply), text) <= allowed:
            low = middle
        else:
            high = middle - 1

    def spent(kept: int) -> float:
        return spending(shape, arrangement.plan(kept, supply), text) / allowed

    kept = min(range(low, min(low + 2, supply + 1)), key=lambda kept: abs(spent(kept) - 1))
    return Matched(arrangement, arrangement.plan(kept, supply), spent(kept))


def candidates(
    name: str, shape: HostShape, text: int, allowed: float, num_trials: int
) -> list[Matched]:
    """Settings of a method to try at equal cost, as many for every method (or all there are).

    What cannot be had for the price is not a trial; if nothing can, the cheapest is all.
    """
    found = [
        match(one, shape, text, allowed)
        for one in itertools.islice(_arrangements(name, shape.num_layers), 8 * num_trials)
    ]
    fair = [one for one in found if one.is_close]
    return fair[:num_trials] or [min(found, key=lambda one: one.spent)]


def _arrangements(name: str, num_layers: int) -> Iterator[Arrangement]:
    """The default setting in every place, then the next; each once."""
    seen = set()
    settings = proposals(name, 64)
    if name == "cdpruner":  # by what [CLS] sees it can stand before the language model as well
        before = [method.replace({"relevance": "cls_row"}) for method in settings]
        settings = [one for pair in zip(before, settings, strict=True) for one in pair]
    for method in settings:
        for layers in _places(method, num_layers):
            key = (str(method), layers)
            if key not in seen:
                seen.add(key)
                yield Arrangement(method, layers)


def _places(method: Method, num_layers: int) -> list[tuple[int, ...]]:
    if "before" in method.where:
        return [()]
    if method.name == "pyramiddrop":
        depths = [[max(1, round(depth * num_layers)) for depth in depths] for depths in _PYRAMIDS]
        return [tuple(layers) for layers in depths if len(set(layers)) == len(layers)]
    return [(layer,) for layer in _FIRST_CUTS if layer < num_layers]
