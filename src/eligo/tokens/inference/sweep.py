"""Accuracy over cost: every arm answers the same questions, through stock `generate`.

An arm is a plan: a training-free method at a budget, or something trained. Beside them stand the
unpruned model and the blind baseline, which sees no image. Costs are counted from what was really
kept, question by question, with the selector's own share. An arm keeps which of its answers were
right, so that any two can be compared question by question.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import GRID, SceneExamples
from eligo.tokens.inference.answers import BLIND, WHOLE, Asker, answer_blindly, bits, rows_of
from eligo.tokens.methods import Method, read_method
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.sweep_config import SweepConfig


@dataclass(frozen=True)
class Arm:
    """One row of the table."""

    name: str
    """A method as it was written, or where a plan came from."""
    plan: Plan | None
    """None sees no image and runs no model."""
    budget: int | None = None
    """Of a method."""

    @property
    def key(self) -> str:
        """What makes it the same arm as one in a file: name, settings, weights."""
        if self.plan is None or not self.plan.stages:
            return self.name
        return f"{self.name}@{self.budget or 'plan'}#{_digest(self.plan)}"


def arms_of(config: SweepConfig, plans: Iterable[tuple[str, Plan]] = ()) -> list[Arm]:
    """The unpruned model, every method at every budget, the plans, and the blind baseline."""
    methods = [(text, read_method(text)) for text in config.methods]
    arms = [
        Arm(text, place(method, budget, config.layer), budget)
        for text, method in methods
        if method.name != WHOLE
        for budget in config.budgets
    ]
    arms += [Arm(name, plan) for name, plan in plans]
    different = {arm.key: arm for arm in arms}.values()
    return [Arm(WHOLE, Plan()), *different, Arm(BLIND, None)]


def place(method: Method, budget: int, layer: int) -> Plan:
    """Before the language model if the method can stand there, else one cut."""
    if "before" in method.where:
        return Plan(Stage1(method, budget))
    return Plan(cuts=[Cut(layer, method, budget)])


def _digest(plan: Plan) -> str:
    """Of all that decides what a plan keeps: settings, and weights of learned parts."""
    told = hashlib.sha256()
    settings = [plan.positions, plan.size_bias]
    for stage in plan.stages:
        reducer: Any = stage.reducer
        settings += [getattr(stage, "layer", 0), stage.budget, stage.ratio, reducer.name]
        if isinstance(reducer, nn.Module):
            for name, value in reducer.state_dict().items():
                told.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        elif hasattr(reducer, "describe"):
            settings.append(reducer.describe())
    told.update(json.dumps(settings).encode())
    return told.hexdigest()[:12]


class Sweep:
    """The questions, the host, and how an arm fares with them."""

    def __init__(self, config: SweepConfig, model: nn.Module, processor: Any) -> None:
        self.config, self.model, self.processor = config, model, processor
        self.shape = HostShape.of(model)
        # Where images differ in size, nobody knows the grid beforehand; only the oracle needs it.
        side = math.isqrt(self.shape.vision or GRID**2)
        self.examples = SceneExamples(
            config.scenes, config.split, config.questions, grid=(side, side)
        )
        self.asker = Asker(
            model,
            processor,
            self.examples,
            batch_size=config.batch_size,
            max_new_tokens=config.max_new_tokens,
        )

    def check(self, arms: Sequence[Arm]) -> None:
        """Whatever an arm asks of this host that it cannot give, before any question is asked."""
        for arm in arms:
            if arm.plan is None:
                continue
            try:
                arm.plan.resolve(self.shape.num_layers, self.shape.vision)
            except InputError as error:
                raise InputError(f"{arm.name}: {error}") from None

    def run(self, arm: Arm, on_progress: Callable[[int], None] | None = None) -> dict[str, Any]:
        """One arm as JSON holds it."""
        tell = on_progress or (lambda _: None)
        head = {"key": arm.key, "name": arm.name, "budget": arm.budget}
        if arm.plan is None:
            families, right = answer_blindly(self.examples, self.config.blind_scenes, tell)
            cost: dict[str, Any] = {"kept": [0]}
        else:
            answers = self.asker.ask({arm.name: arm.plan}, tell)
            families, right = answers.families, answers.right[arm.name]
            cost = answers.cost[arm.name]
        return head | cost | {"rows": rows_of(families, right), "right": bits(right)}


def paired_drop(whole: str, pruned: str) -> tuple[float, float, float]:
    """Accuracy lost on the same questions, and its 95 % interval (normal), from `right` of two.

    >>> paired_drop("1111", "1101")[0]
    0.25
    """
    drops = [int(a) - int(b) for a, b in zip(whole, pruned, strict=True)]
    mean = sum(drops) / len(drops)
    spread = math.sqrt(sum((drop - mean) ** 2 for drop in drops) / max(1, len(drops) - 1))
    margin = 1.96 * spread / math.sqrt(len(drops))
    return mean, mean - margin, mean + margin
