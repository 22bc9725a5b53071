"""Accuracy over cost of methods and plans on the same questions, through stock `generate`.

A variant is a training-free method at a budget, or a trained plan. The unpruned model and the blind
baseline, which gets no image, are always included.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.config import SweepConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import GRID, SceneExamples
from eligo.tokens.inference.evaluate import BLIND, WHOLE, answer_blindly, answer_questions
from eligo.tokens.inference.resolve import place_method
from eligo.tokens.methods import read_method
from eligo.tokens.metrics import accuracy_by_family, as_bits
from eligo.tokens.plan import Plan


@dataclass(frozen=True)
class Variant:
    """A plan to compare."""

    name: str
    """The method as the config writes it, or the source of the plan."""
    plan: Plan | None
    """None: the blind baseline."""
    budget: int | None = None
    """Budget of a method."""

    @property
    def key(self) -> str:
        """Name, settings and weights in one string."""
        if self.plan is None or not self.plan.stages:
            return self.name
        return f"{self.name}@{self.budget or 'plan'}#{_digest(self.plan)}"


def variants_of(config: SweepConfig, plans: Iterable[tuple[str, Plan]] = ()) -> list[Variant]:
    """Return the unpruned model, every method at every budget, the plans, the blind baseline."""
    variants = []
    for text, method in [(text, read_method(text)) for text in config.methods]:
        if method.name == WHOLE:
            continue
        layers = () if "before" in method.where else (config.layer,)
        variants += [
            Variant(text, place_method(method, (budget,), layers), budget)
            for budget in config.budgets
        ]
    variants += [Variant(name, plan) for name, plan in plans]
    unique = {variant.key: variant for variant in variants}.values()
    return [Variant(WHOLE, Plan()), *unique, Variant(BLIND, None)]


def _digest(plan: Plan) -> str:
    """Return a hash of the settings and weights of a plan."""
    digest = hashlib.sha256()
    settings = [plan.positions, plan.size_bias]
    for stage in plan.stages:
        reducer: Any = stage.reducer
        settings += [getattr(stage, "layer", 0), stage.budget, stage.ratio, reducer.name]
        if isinstance(reducer, nn.Module):
            for name, value in reducer.state_dict().items():
                digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        elif hasattr(reducer, "describe"):
            settings.append(reducer.describe())
    digest.update(json.dumps(settings).encode())
    return digest.hexdigest()[:12]


class Sweep:
    """The host and the questions of a sweep."""

    def __init__(self, config: SweepConfig, model: nn.Module, processor: Any) -> None:
        self.config, self.model, self.processor = config, model, processor
        self.shape = HostShape.of(model)
        # Only the oracle needs the grid; it is unknown if the host takes images of any size.
        side = math.isqrt(self.shape.vision or GRID**2)
        self.examples = SceneExamples(
            config.scenes, config.split, config.questions, grid=(side, side)
        )

    def check(self, variants: Sequence[Variant]) -> None:
        """Raise for plans that do not fit the host, before any question is answered."""
        for variant in variants:
            if variant.plan is None:
                continue
            try:
                variant.plan.resolve(self.shape.num_layers, self.shape.vision)
            except InputError as error:
                raise InputError(f"{variant.name}: {error}") from None

    def run(
        self, variant: Variant, on_progress: Callable[[int], None] = lambda _: None
    ) -> dict[str, Any]:
        """Return accuracy and cost of one variant as plain values."""
        config = self.config
        if variant.plan is None:
            families, right = answer_blindly(self.examples, config.blind_scenes, on_progress)
            cost: dict[str, Any] = {"kept": [0]}
        else:
            answers = answer_questions(
                self.model,
                self.processor,
                self.examples,
                {variant.name: variant.plan},
                batch_size=config.batch_size,
                max_new_tokens=config.max_new_tokens,
                on_progress=on_progress,
            )
            families, right = answers.families, answers.right[variant.name]
            cost = answers.cost[variant.name]
        head = {"key": variant.key, "name": variant.name, "budget": variant.budget}
        return head | cost | {"rows": accuracy_by_family(families, right), "right": as_bits(right)}
