"""Accuracy over cost: every arm answers the same questions, through stock `generate`.

An arm is a plan: a training-free method at a budget, or something trained. Beside them stand the
unpruned model and the blind baseline, which sees no image. Costs are counted from what was really
kept, question by question, with the selector's own share. An arm keeps which of its answers were
right, so that any two can be compared question by question.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eligo.errors import InputError
from eligo.report.intervals import wilson_interval
from eligo.scenes.vlm.evaluate import VlmEvaluationConfig, fit_blind
from eligo.tokens.cost.count import Cost, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import GRID, Collator, SceneExamples
from eligo.tokens.inside.removal import pruning
from eligo.tokens.measure.evaluate import ALL, say
from eligo.tokens.measure.sweep_config import SweepConfig
from eligo.tokens.methods import Method, read_method
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.predict import trace_schedule
from eligo.vqa import vqa_accuracy

WHOLE, BLIND = "none", "blind"


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
        if arm.plan is None:
            families, right = self._blind(tell)
            cost = {"kept": [0]}
        else:
            families, right, schedules = self._answer(arm.plan, tell)
            cost = self._cost(arm.plan, schedules)
        head = {"key": arm.key, "name": arm.name, "budget": arm.budget}
        return head | cost | {"rows": rows_of(families, right), "right": _bits(right)}

    def _answer(
        self, plan: Plan, tell: Callable[[int], None]
    ) -> tuple[list[str], list[bool], Counter[Schedule]]:
        device = next(self.model.parameters()).device
        for stage in plan.stages:
            if isinstance(stage.reducer, nn.Module):
                stage.reducer.to(device)
        collator = Collator(self.processor)
        families: list[str] = []
        right: list[bool] = []
        schedules: Counter[Schedule] = Counter()
        for first in range(0, len(self.examples), self.config.batch_size):
            last = min(first + self.config.batch_size, len(self.examples))
            rows = self.examples.__getitems__(range(first, last))
            batch = collator(rows).to(device)
            context = pruning(self.model, plan, batch.question_mask, scene=batch.scene)
            with torch.no_grad(), context as trace:
                said = say(self.model, self.processor, batch, self.config.max_new_tokens)
            families += [row.family for row in rows]
            # A scene's question has one answer: right or wrong, nothing between.
            right += [vqa_accuracy(s, r.answers) > 0.5 for s, r in zip(said, rows, strict=True)]
            schedules.update(
                trace_schedule(trace, self.shape.num_layers, row) for row in range(len(rows))
            )
            tell(last)
        return families, right, schedules

    def _blind(self, tell: Callable[[int], None]) -> tuple[list[str], list[bool]]:
        config = self.config
        blind = fit_blind(
            VlmEvaluationConfig(scenes=config.scenes, blind_scenes=config.blind_scenes)
        )
        families: list[str] = []
        right: list[bool] = []
        for first in range(0, len(self.examples), config.batch_size):
            last = min(first + config.batch_size, len(self.examples))
            rows = self.examples.__getitems__(range(first, last))
            families += [row.family for row in rows]
            right += [
                vqa_accuracy(blind(row.question, row.kind), row.answers) > 0.5 for row in rows
            ]
            tell(last)
        return families, right

    def _cost(self, plan: Plan, schedules: Counter[Schedule]) -> dict[str, Any]:
        """Means over the questions."""
        reducers = [plan.stage1 and plan.stage1.reducer, *(cut.reducer for cut in plan.cuts)]
        counted = [
            (count_cost(self.shape, schedule, selectors=reducers), times)
            for schedule, times in schedules.items()
        ]

        def mean(value: Callable[[Cost], float]) -> float:
            return sum(value(cost) * times for cost, times in counted) / schedules.total()

        llm, full = mean(lambda cost: cost.llm), mean(lambda cost: cost.llm_full)
        selector = mean(lambda cost: cost.selector or 0.0)
        rest = mean(lambda cost: cost.tower + cost.projector)
        rest_full = mean(lambda cost: cost.tower + cost.projector_full)
        usual = max(schedules, key=lambda schedule: schedules[schedule])
        budgets = [usual.merged, *(budget for _, budget in usual.cuts)]
        return {
            "kept": budgets if plan.stages else [usual.vision],
            "layers": [0, *(layer for layer, _ in usual.cuts)],
            "vision_keep_mean": mean(lambda cost: cost.vision_keep_mean),
            "mean_length": mean(lambda cost: cost.mean_length),
            "flops_llm": llm,
            "flops_selector": selector,
            "flops_total": rest + selector + llm,
            "flops_reduction_llm": 1 - llm / full,
            "flops_reduction_with_selector": 1 - (llm + selector) / full,
            "flops_reduction_total": 1 - (rest + selector + llm) / (rest_full + full),
            "uncounted": list(counted[0][0].uncounted),
        }


def rows_of(families: Sequence[str], right: Sequence[bool]) -> list[dict[str, Any]]:
    """Accuracy with Wilson's 95 % interval: of all questions, then family by family."""
    rows = []
    for family in (ALL, *dict.fromkeys(families)):
        mine = [one for one, its in zip(right, families, strict=True) if family in (its, ALL)]
        low, high = wilson_interval(sum(mine), len(mine))
        share = sum(mine) / len(mine)
        rows.append(
            {"family": family, "asked": len(mine), "right": sum(mine)}
            | {"accuracy": share, "low": low, "high": high}
        )
    return rows


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


def _bits(right: Sequence[bool]) -> str:
    return "".join("01"[one] for one in right)
