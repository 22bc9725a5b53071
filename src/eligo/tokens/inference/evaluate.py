"""Answers of a host to the same questions under several plans, through stock `generate`.

Batches are the outer loop, so that an image is preprocessed once for all plans. Costs are counted
from the tokens that were kept, question by question, and include the selector.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from eligo.config.bounds import check_count
from eligo.pretrained.chat import ContextWatch
from eligo.scenes.blind import fit_blind
from eligo.tokens.cost.flops import Schedule
from eligo.tokens.cost.plan_cost import mean_cost, trace_schedules
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, SceneExamples, TokenBatch, TokenExample
from eligo.tokens.hooks.model_hooks import sharing_tower
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.inference.load import floats_of
from eligo.tokens.inference.resolve import move_plan
from eligo.tokens.plan import Plan
from eligo.tokens.trace import Stopwatch
from eligo.train.data import Examples, ordered_batches
from eligo.vqa import vqa_accuracy

WHOLE, BLIND = "none", "blind"
"""Names of the unpruned model and of the baseline without images, in every comparison."""
_CHUNK = 256  # scenes drawn at once


def _ignore(_done: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Question:
    """A question and its right answer."""

    id: str
    family: str
    question: str
    answer: str


@dataclass(frozen=True)
class PairedAnswer(Question):
    """A question, answered by the whole and by the pruned model."""

    answer_whole: str
    answer_pruned: str
    whole: float
    """VQA accuracy, from 0 to 1."""
    pruned: float


@dataclass
class Answers:
    """Answers to a list of questions, in their order; the dicts are by plan."""

    questions: list[Question] = field(default_factory=list)
    text: dict[str, list[str]] = field(default_factory=dict)
    accuracy: dict[str, list[float]] = field(default_factory=dict)
    """VQA accuracy of each answer, from 0 to 1."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """Mean time per question, one number for each batch, if timed."""
    cost: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Means over the questions."""

    @property
    def families(self) -> list[str]:
        """Family of each question."""
        return [question.family for question in self.questions]

    def paired(self, name: str) -> list[PairedAnswer]:
        """Return the answers of the unpruned model beside those of a plan."""
        columns = [by[plan] for by in (self.text, self.accuracy) for plan in (WHOLE, name)]
        rows = zip(self.questions, *columns, strict=True)
        return [PairedAnswer(*astuple(question), *each) for question, *each in rows]

    @property
    def right(self) -> dict[str, list[bool]]:
        """Which answers are right; a question on a scene has one answer."""
        return {name: [x > 0.5 for x in values] for name, values in self.accuracy.items()}


def answer_questions(
    model: nn.Module,
    processor: Any,
    examples: Examples,
    plans: Mapping[str, Plan | None],
    *,
    batch_size: int,
    max_new_tokens: int = 4,
    instruction: str = "",
    with_images: bool = True,
    with_cost: bool = True,
    timed: bool = False,
    on_progress: Callable[[int], None] = _ignore,
) -> Answers:
    """Answer every question under every plan (None: the unpruned model).

    Plans share the vision tower, unless they are `timed`. `on_progress` is called with the number
    of questions that are done. `with_cost` needs a host that `HostShape` supports.
    `with_images=False` asks the unpruned model without the image.
    """
    device = next(model.parameters()).device
    for plan in plans.values():
        move_plan(plan, device)
    collator = Collator(processor, instruction=instruction, with_images=with_images)
    context = ContextWatch(model)
    answers = Answers()
    for by_plan in (answers.text, answers.accuracy, answers.seconds):
        by_plan.update({name: [] for name in plans})
    shape = HostShape.of(model) if with_cost else None
    schedules: dict[str, Counter[Schedule]] = {name: Counter() for name in plans}
    # Scenes are drawn here, on their device; files are read ahead, while the model answers.
    workers = 0 if isinstance(examples, SceneExamples) else None
    collate = partial(_collate, collator)
    with nullcontext() if timed or len(plans) < 2 else sharing_tower(model):
        for rows, batch in ordered_batches(
            examples, batch_size, num_workers=workers, collate=collate
        ):
            answers.questions += [question for question, _ in rows]
            batch = batch.to(device)
            context.look(batch.inputs["input_ids"].shape[1])
            padded = batch.inputs["attention_mask"].cpu()
            for name, plan in plans.items():
                pruned = nullcontext()
                if plan is not None:
                    pruned = pruning(model, plan, batch.question_mask, scene=batch.scene)
                with torch.no_grad(), pruned as trace:
                    watch = Stopwatch(device)
                    texts = generate_answers(model, processor, batch, max_new_tokens)
                    watch.stop()
                answers.text[name] += texts
                if timed:
                    answers.seconds[name].append(watch.milliseconds / 1000 / len(rows))
                answers.accuracy[name] += [
                    vqa_accuracy(text, right) for text, (_, right) in zip(texts, rows, strict=True)
                ]
                if shape is not None and trace is not None:
                    schedules[name].update(trace_schedules(trace, shape.num_layers, padded))
            on_progress(len(answers.questions))
    if shape is not None:
        answers.cost = {
            name: mean_cost(shape, plan, schedules[name])
            for name, plan in plans.items()
            if plan is not None
        }
    return answers


def _collate(
    collator: Collator, examples: Sequence[TokenExample]
) -> tuple[list[tuple[Question, tuple[str, ...]]], TokenBatch]:
    """Return the questions with all right answers, and their batch, without the images."""
    rows = [(Question(r.id, r.family, r.question, r.answer), r.answers) for r in examples]
    return rows, replace(collator(examples, share_images=True), examples=())


def generate_answers(
    model: nn.Module, processor: Any, batch: TokenBatch, max_new_tokens: int
) -> list[str]:
    """Return the greedy answers of a host to a batch on its device."""
    inputs = floats_of(model, batch.inputs)
    generate: Any = getattr(model, "generate")  # noqa: B009 (nn.Module does not declare it)
    output = generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]


def evaluate_plan(
    model: nn.Module,
    processor: Any,
    plan: Plan,
    examples: Examples,
    *,
    batch_size: int = 8,
    max_new_tokens: int = 10,
    instruction: str = "",
    on_progress: Callable[[int], None] = _ignore,
) -> list[PairedAnswer]:
    """Answer every question with all tokens, and under the plan if it removes any."""
    check_count("batch_size", batch_size)
    check_count("max_new_tokens", max_new_tokens)
    plans = {WHOLE: None, "pruned": plan} if plan.stages else {WHOLE: None}
    answers = answer_questions(
        model,
        processor,
        examples,
        plans,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        instruction=instruction,
        with_cost=False,
        on_progress=on_progress,
    )
    return answers.paired(list(plans)[-1])


def answer_blindly(
    examples: SceneExamples, num_scenes: int, on_progress: Callable[[int], None] = _ignore
) -> tuple[list[str], list[bool]]:
    """Return the families, and which answers of the blind baseline are right.

    The baseline is fitted on `num_scenes` training scenes.
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
