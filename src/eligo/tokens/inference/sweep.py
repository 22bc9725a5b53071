"""Accuracy over cost of methods and plans on the same questions, through stock `generate`.

A variant is a training-free method at a budget, or a trained plan. The unpruned model and the blind
baseline, which gets no image, are always included.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.config import SweepConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import GRID, SceneExamples
from eligo.tokens.inference.equal_cost import Matched, candidates, spending, tune
from eligo.tokens.inference.evaluate import (
    BLIND,
    WHOLE,
    Answers,
    answer_blindly,
    answer_questions,
)
from eligo.tokens.inference.resolve import place_method
from eligo.tokens.methods import build, find, read_method
from eligo.tokens.metrics import accuracy_by_family, as_bits
from eligo.tokens.plan import Plan, Stage1


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


def variants_of(
    config: SweepConfig,
    plans: Iterable[tuple[str, Plan]] = (),
    tuned: Iterable[Variant] | None = None,
) -> list[Variant]:
    """Return the unpruned model, every method at every budget, the plans, the blind baseline.

    `tuned`: variants of the methods, instead of those that the config writes.
    """
    variants = list(_as_written(config) if tuned is None else tuned)
    variants += [Variant(name, plan) for name, plan in plans]
    unique = {variant.key: variant for variant in variants}.values()
    return [Variant(WHOLE, Plan()), *unique, Variant(BLIND, None)]


def _as_written(config: SweepConfig) -> Iterator[Variant]:
    for text, method in [(text, read_method(text)) for text in config.methods]:
        if method.name == WHOLE:
            continue
        layers = () if "before" in method.where else (config.layer,)
        for budget in config.budgets:
            yield Variant(text, place_method(method, (budget,), layers), budget)


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

    def tune(self, on_progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """Return the length of the text, and the tuning of every method at the cost of a budget."""
        config = self.config
        validation = SceneExamples(
            config.scenes, "validation", config.questions, grid=self.examples.grid
        )
        whole = self._answers(validation, {WHOLE: Plan()})
        text = round(whole.cost[WHOLE]["mean_length"]) - self._num_tokens
        settings = {
            f"{name}@{budget}": self._settings(name, budget, text)
            for name in config.methods
            if name != WHOLE
            for budget in config.budgets
        }

        def answer(plans: dict[str, Plan]) -> Mapping[str, Sequence[bool]]:
            return self._answers(validation, plans, on_progress).right

        return {"text": text, "methods": tune(settings, answer)}

    def tuned_variants(self, tuned: Mapping[str, Any]) -> list[Variant]:
        """Return every method with its best setting, as `tune` found it."""
        variants = []
        for key, entry in tuned["methods"].items():
            name, _, budget = key.partition("@")
            best = self._settings(name, int(budget), tuned["text"])[entry["chosen"]]
            variants.append(Variant(f"{name}, tuned", best.plan, int(budget)))
        return variants

    def _settings(self, name: str, budget: int, text: int) -> list[Matched]:
        """Return the settings of a method to try at the cost of `budget` tokens."""
        find(name)
        if budget > self._num_tokens:
            raise InputError(
                f"budgets: got {budget}, expected at most {self._num_tokens}, the number of vision "
                "tokens of the host"
            )
        allowed = spending(self.shape, Plan(Stage1(build("random"), budget)), text)
        return candidates(name, self.shape, text, allowed, self.config.trials)

    @property
    def _num_tokens(self) -> int:
        if self.shape.vision is None:
            raise InputError(
                "trials: the vision tokens of this host depend on the image; expected a host with "
                "a fixed number, or trials 0"
            )
        return self.shape.vision

    def _answers(
        self,
        examples: SceneExamples,
        plans: dict[str, Plan],
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Answers:
        return answer_questions(
            self.model,
            self.processor,
            examples,
            plans,
            batch_size=self.config.batch_size,
            max_new_tokens=self.config.max_new_tokens,
            on_progress=on_progress,
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
            answers = self._answers(self.examples, {variant.name: variant.plan}, on_progress)
            families, right = answers.families, answers.right[variant.name]
            cost = answers.cost[variant.name]
        head = {"key": variant.key, "name": variant.name, "budget": variant.budget}
        return head | cost | {"rows": accuracy_by_family(families, right), "right": as_bits(right)}
