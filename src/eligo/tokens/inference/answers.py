"""The same questions put to one host under many plans, through stock `generate`.

Batches are the outer loop: an image is painted, resized and moved once for all plans. Costs are
counted from what was really kept, question by question, with the selector's own share. Which
answers were right is kept one by one, so that any two plans can be compared question by question.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from eligo.pretrained.chat import ContextWatch
from eligo.report.intervals import wilson_interval
from eligo.scenes.blind import fit_blind
from eligo.tokens.cost.count import Cost, Schedule, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, SceneExamples
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.evaluate import ALL, say
from eligo.tokens.inference.predict import trace_schedules
from eligo.tokens.plan import Plan
from eligo.tokens.trace import Stopwatch
from eligo.vqa import vqa_accuracy

WHOLE, BLIND = "none", "blind"
"""The arms that every comparison has: all tokens, and no image at all."""
_CHUNK = 256  # scenes drawn at once


@dataclass
class Answers:
    """What came of a set of questions, in their order."""

    families: list[str] = field(default_factory=list)
    right: dict[str, list[bool]] = field(default_factory=dict)
    """By plan."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """By plan."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By plan: a question's share of the time that its batch took, one number for each batch."""
    cost: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By plan; means over the questions."""


class Asker:
    """A host and the questions for it."""

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        examples: SceneExamples,
        *,
        batch_size: int,
        max_new_tokens: int = 4,
    ) -> None:
        self.model, self.processor, self.examples = model, processor, examples
        self.batch_size, self.max_new_tokens = batch_size, max_new_tokens
        self.shape = HostShape.of(model)

    def ask(
        self, plans: Mapping[str, Plan], on_progress: Callable[[int], None] = lambda _: None
    ) -> Answers:
        """Every question under every plan; `on_progress` hears how many questions are done."""
        device = next(self.model.parameters()).device
        for plan in plans.values():
            move(plan, device)
        collator, longest = Collator(self.processor), ContextWatch(self.model)
        answers = Answers()
        for kept in (answers.right, answers.said, answers.seconds):
            kept.update({name: [] for name in plans})
        schedules: dict[str, Counter[Schedule]] = {name: Counter() for name in plans}
        for first in range(0, len(self.examples), self.batch_size):
            last = min(first + self.batch_size, len(self.examples))
            rows = self.examples.__getitems__(range(first, last))
            answers.families += [row.family for row in rows]
            batch = collator(rows).to(device)
            longest.look(batch.inputs["input_ids"].shape[1])
            padded = batch.inputs["attention_mask"].cpu()
            for name, plan in plans.items():
                context = pruning(self.model, plan, batch.question_mask, scene=batch.scene)
                with torch.no_grad(), context as trace:
                    watch = Stopwatch(device)
                    said = say(self.model, self.processor, batch, self.max_new_tokens)
                    watch.stop()
                answers.said[name] += said
                answers.seconds[name].append(watch.milliseconds / 1000 / len(rows))
                # A scene's question has one answer: right or wrong, nothing between.
                answers.right[name] += [
                    vqa_accuracy(one, row.answers) > 0.5
                    for one, row in zip(said, rows, strict=True)
                ]
                schedules[name].update(trace_schedules(trace, self.shape.num_layers, padded))
            on_progress(last)
        answers.cost = {
            name: mean_cost(self.shape, plan, schedules[name]) for name, plan in plans.items()
        }
        return answers


def answer_blindly(
    examples: SceneExamples, num_scenes: int, on_progress: Callable[[int], None] = lambda _: None
) -> tuple[list[str], list[bool]]:
    """Families, and which questions the likeliest answer gets right without any image.

    The likeliest by wording, else by kind of question, in that many training scenes.
    """
    blind = fit_blind(examples.config, num_scenes)
    families: list[str] = []
    right: list[bool] = []
    for first in range(0, len(examples), _CHUNK):
        last = min(first + _CHUNK, len(examples))
        rows = examples.__getitems__(range(first, last))
        families += [row.family for row in rows]
        right += [vqa_accuracy(blind(row.question, row.kind), row.answers) > 0.5 for row in rows]
        on_progress(last)
    return families, right


def move(plan: Plan, device: torch.device | str) -> None:
    """Take the learned parts of a plan to a device."""
    for stage in plan.stages:
        if isinstance(stage.reducer, nn.Module):
            stage.reducer.to(device)


def mean_cost(shape: HostShape, plan: Plan, schedules: Counter[Schedule]) -> dict[str, Any]:
    """Means over the questions, as JSON holds them."""
    reducers = [plan.stage1 and plan.stage1.reducer, *(cut.reducer for cut in plan.cuts)]
    counted = [
        (count_cost(shape, schedule, selectors=reducers), times)
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


def bits(right: Sequence[bool]) -> str:
    """A 0 or a 1 for each question.

    >>> bits([True, False])
    '10'
    """
    return "".join("01"[one] for one in right)


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
