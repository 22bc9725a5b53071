"""Methods at equal cost: the number of tokens with which a method reaches a given cost.

The cost is that of language model and selector. A method that cuts inside the language model also
runs the layers before its cut on all tokens, so it keeps fewer than one that acts before the model.
If even one token exceeds the cost, the method gets its cheapest setting.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eligo.tokens.cost.plan_cost import plan_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.methods import METHODS, Method, proposals
from eligo.tokens.plan import Cut, Plan, Stage1

CLOSE = 0.01
"""Relative difference up to which costs are equal."""
_FIRST_CUTS = (2, 1, 3)  # FastV's layer, then its neighbours
_PYRAMIDS = ((1 / 4, 1 / 2, 3 / 4), (1 / 12, 1 / 4, 1 / 2), (1 / 6, 1 / 3, 2 / 3))


@dataclass(frozen=True)
class Arrangement:
    """A method and its layers."""

    method: Method
    layers: tuple[int, ...] = ()
    """Layers of its cuts; none: before the language model."""

    def plan(self, kept: int, num_tokens: int) -> Plan:
        """Return a plan that keeps `kept` of `num_tokens`, and the same share at every cut."""
        if not self.layers:
            return Plan(Stage1(self.method, kept))
        budgets = [
            max(1, round(num_tokens * (kept / num_tokens) ** power))
            for power in range(1, len(self.layers) + 1)
        ]
        return Plan(
            cuts=[Cut(at, self.method, left) for at, left in zip(self.layers, budgets, strict=True)]
        )

    @property
    def name(self) -> str:
        """Method, options and layers as text."""
        options = self.method.model_dump(exclude={"name"}, exclude_defaults=True)
        parts = [f"{key}={value}" for key, value in options.items()]
        parts += [f"layer {'/'.join(map(str, self.layers))}"] if self.layers else []
        return f"{self.method.name} ({', '.join(parts)})" if parts else self.method.name


@dataclass(frozen=True)
class Matched:
    """An arrangement at a given cost."""

    arrangement: Arrangement
    plan: Plan
    spent: float
    """Its cost relative to the given one; equal if within `CLOSE` of 1."""


def spending(shape: HostShape, plan: Plan, text: int) -> float:
    """Return the FLOPs of language model and selector."""
    cost = plan_cost(shape, plan, text)
    return cost.llm + (cost.selector or 0.0)


def match(arrangement: Arrangement, shape: HostShape, text: int, allowed: float) -> Matched:
    """Return the plan whose cost is nearest to `allowed` FLOPs."""
    num_tokens = shape.vision
    assert num_tokens is not None  # hosts of one image size only
    low, high = 1, num_tokens
    while low < high:  # the largest number that does not exceed the cost
        middle = (low + high + 1) // 2
        if spending(shape, arrangement.plan(middle, num_tokens), text) <= allowed:
            low = middle
        else:
            high = middle - 1

    def spent(kept: int) -> float:
        return spending(shape, arrangement.plan(kept, num_tokens), text) / allowed

    kept = min(range(low, min(low + 2, num_tokens + 1)), key=lambda kept: abs(spent(kept) - 1))
    return Matched(arrangement, arrangement.plan(kept, num_tokens), spent(kept))


def scale_to(plan: Plan, shape: HostShape, text: int, allowed: float) -> Plan:
    """Return a plan scaled to the largest budgets that cost at most `allowed` FLOPs."""
    first = plan.stages[0].budget
    assert first is not None
    assert shape.vision is not None  # hosts of one image size only
    found = bisect_right(
        range(1, shape.vision + 1),
        allowed,
        key=lambda kept: spending(shape, plan.scaled(kept / first), text),
    )
    return plan.scaled(max(1, found) / first)


def candidates(
    name: str,
    shape: HostShape,
    text: int,
    allowed: float,
    num_trials: int,
    close: float = CLOSE,
) -> list[Matched]:
    """Return up to `num_trials` settings of a method at equal cost, up to a share of `close`.

    If no setting reaches the cost, return only the cheapest.
    """
    matches = [
        match(arrangement, shape, text, allowed)
        for arrangement in itertools.islice(_arrangements(name, shape.num_layers), 8 * num_trials)
    ]
    equal = [matched for matched in matches if abs(matched.spent - 1) <= close]
    return equal[:num_trials] or [min(matches, key=lambda matched: matched.spent)]


def tune(
    settings: Mapping[str, Sequence[Matched]],
    answer: Callable[[dict[str, Plan]], Mapping[str, Sequence[bool]]],
) -> dict[str, dict[str, Any]]:
    """Return, by name, the accuracy of every setting and the number of the best one.

    `answer` says which answers to the same questions are right, for each of some plans.
    """
    plans = {
        f"{name}#{i}": one.plan for name, tried in settings.items() for i, one in enumerate(tried)
    }
    right, tuned = answer(plans), {}
    for name, tried in settings.items():
        found = [right[f"{name}#{number}"] for number in range(len(tried))]
        trials = [
            {"setting": one.arrangement.name, "accuracy": sum(each) / len(each), "spent": one.spent}
            for one, each in zip(tried, found, strict=True)
        ]
        accuracies = [trial["accuracy"] for trial in trials]
        tuned[name] = {"trials": trials, "chosen": accuracies.index(max(accuracies))}
    return tuned


def _arrangements(name: str, num_layers: int) -> Iterator[Arrangement]:
    """Yield the default setting at all layers, then the next setting; each once."""
    yielded = set()
    settings = proposals(name, 64)
    if options := METHODS[name].before:
        before = [method.replace(dict(options)) for method in settings]
        settings = [method for pair in zip(before, settings, strict=True) for method in pair]
    for method in settings:
        for layers in _places(method, num_layers):
            key = (str(method), layers)
            if key not in yielded:
                yielded.add(key)
                yield Arrangement(method, layers)


def _places(method: Method, num_layers: int) -> list[tuple[int, ...]]:
    cuts = [(layer,) for layer in _FIRST_CUTS if layer < num_layers]
    if "before" in method.where:
        # States know more of the question than embeddings do, but cost the layers before the cut.
        inside = "question" in method.needs and "inside" in method.where
        return [(), *cuts] if inside else [()]
    if method.name == "pyramiddrop":
        depths = [[max(1, round(depth * num_layers)) for depth in depths] for depths in _PYRAMIDS]
        return [tuple(layers) for layers in depths if len(set(layers)) == len(layers)]
    return cuts
