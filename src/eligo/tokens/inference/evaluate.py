"""How many answers a pruned model keeps: through stock `generate`, whole and pruned, paired.

Counted by the official VQA accuracy, per family of questions, with the drop and its 95 % interval
over questions. Every method that is a `Plan` is judged alike, trained or not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eligo.config.bounds import check_count
from eligo.pretrained.chat import ContextWatch
from eligo.tokens.data.examples import Collator, TokenBatch
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.load import floats_of
from eligo.tokens.plan import Plan
from eligo.train.data import Examples
from eligo.vqa import vqa_accuracy

ALL = "all"


@dataclass(frozen=True)
class Answered:
    """One question, and how right the whole and the pruned model were."""

    id: str
    family: str
    question: str
    answer: str
    said_whole: str
    said_pruned: str
    whole: float
    """VQA accuracy, 0 to 1."""
    pruned: float


@dataclass(frozen=True)
class FamilyRow:
    """One family of questions, or all."""

    family: str
    asked: int
    whole: float
    pruned: float
    drop: float
    """In points of accuracy, 0 to 1."""
    drop_low: float
    drop_high: float
    """Its 95 % interval, over questions."""


def evaluate_plan(
    model: nn.Module,
    processor: Any,
    plan: Plan,
    examples: Examples,
    *,
    batch_size: int = 8,
    max_new_tokens: int = 10,
    instruction: str = "",
    on_progress: Callable[[int], None] | None = None,
) -> list[Answered]:
    """Answer every question twice: with all tokens, and under the plan."""
    check_count("batch_size", batch_size)
    check_count("max_new_tokens", max_new_tokens)
    collator = Collator(processor, instruction=instruction)
    device, context = next(model.parameters()).device, ContextWatch(model)
    answered: list[Answered] = []
    for first in range(0, len(examples), batch_size):
        last = min(first + batch_size, len(examples))
        rows = [examples[row] for row in range(first, last)]
        batch = collator(rows).to(device)
        context.look(batch.inputs["input_ids"].shape[1])
        with torch.no_grad():
            whole = say(model, processor, batch, max_new_tokens)
            with pruning(model, plan, batch.question_mask, scene=batch.scene):
                pruned = say(model, processor, batch, max_new_tokens)
        answered += [
            Answered(
                id=row.id,
                family=row.family,
                question=row.question,
                answer=row.answer,
                said_whole=full,
                said_pruned=less,
                whole=vqa_accuracy(full, row.answers),
                pruned=vqa_accuracy(less, row.answers),
            )
            for row, full, less in zip(rows, whole, pruned, strict=True)
        ]
        if on_progress is not None:
            on_progress(last)
    return answered


def say(model: nn.Module, processor: Any, batch: TokenBatch, max_new_tokens: int) -> list[str]:
    """What the host answers, greedily; the batch must be where the host is."""
    inputs = floats_of(model, batch.inputs)
    generate: Any = getattr(model, "generate")  # noqa: B009 (a Module has none, a host has)
    output = generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]


def summarise(answered: Sequence[Answered]) -> list[FamilyRow]:
    """One row per family, in the order they first occur, and one for all."""
    families = list(dict.fromkeys(one.family for one in answered if one.family))
    rows = []
    for family in [*(families if len(families) > 1 else []), ALL]:
        mine = [one for one in answered if family in (one.family, ALL)]
        drops = [one.whole - one.pruned for one in mine]
        mean = sum(drops) / len(drops)
        spread = math.sqrt(sum((drop - mean) ** 2 for drop in drops) / max(1, len(drops) - 1))
        margin = 1.96 * spread / math.sqrt(len(drops))
        rows.append(
            FamilyRow(
                family=family,
                asked=len(mine),
                whole=sum(one.whole for one in mine) / len(mine),
                pruned=sum(one.pruned for one in mine) / len(mine),
                drop=mean,
                drop_low=mean - margin,
                drop_high=mean + margin,
            )
        )
    return rows
