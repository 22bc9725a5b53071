"""Validation metrics and log lines of a training run.

`accuracy_hard`, with tokens really removed, chooses the checkpoint. An answer counts as right if
every token of the usual answer is the most likely one, as in greedy decoding, in one pass for all
plans; `eligo tokens evaluate` generates answers and computes the official VQA accuracy.

`loss` is the weighted sum of the losses in their training form, without noise. The adversarial loss
is left out: it also depends on the discriminator, which changes during the training.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.tokens.cost.flops import Cost, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.model.relaxer import TrainingRelaxer
from eligo.tokens.training.batch import HostBatch
from eligo.tokens.training.health import Problem, find_problems
from eligo.tokens.training.objective import (
    Observed,
    answer_mask,
    answers,
    losses_of,
    observe,
    right_answers,
)

if TYPE_CHECKING:
    from eligo.tokens.training.task import TokensTask

logger = logging.getLogger("eligo.tokens")

Scalar = Float[Tensor, ""]
_MAX_BATCH = 128


class Validation:
    """The validation split of a task."""

    def __init__(self, task: "TokensTask") -> None:
        self.task = task
        self.baseline: float | None = None
        """Accuracy of the unpruned model, computed once: the host is frozen."""
        self.reported: set[str] = set()

    def run(self, fraction: float) -> dict[str, float]:
        """Return all metrics when a fraction of the training is done; log problems."""
        sums: dict[str, Tensor] = {}
        task = self.task
        size = min(_MAX_BATCH, max(1, task.settings.train.batch_size))
        for batch in task.source.validation(size, next(task.model.parameters()).device):
            for name, value in self._measure(batch, fraction).items():
                sums[name] = sums[name] + value if name in sums else value
        values = dict(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
        count, num_answer, loss = (values.pop(name) for name in ("count", "num_answer", "loss"))
        metrics = {"loss": loss / max(1.0, num_answer)}
        metrics |= {name: value / max(1.0, count) for name, value in values.items()}
        if self.baseline is None:
            self.baseline = metrics["accuracy_baseline"]
        temperature = task.settings.temperature
        metrics |= {"accuracy_baseline": self.baseline, "temperature": temperature.at(fraction)}
        metrics |= self.cost().metrics()
        ends = {"temperature_start": temperature.start, "temperature_end": temperature.end}
        problems = find_problems(metrics | ends, fraction)
        self._report(problems)
        return metrics | {"troubles": float(len(problems))}

    def names(self) -> list[str]:
        """Return the names of the metrics of `run`."""
        task = self.task
        accuracies = ["baseline", "soft", "hard", *(["merge_only"] if task.merger else [])]
        critic = ["disc_prob_real", "disc_prob_fake"] if task.discriminator is not None else []
        names = [f"accuracy_{name}" for name in accuracies]
        return ["loss", *names, *critic, "temperature", *self.cost().metrics(), "troubles"]

    def cost(self) -> Cost:
        """Return the cost of the plan for the usual text length of the data."""
        task = self.task
        heads = [task.pruners[layer] for layer, _ in task.schedule.cuts] if task.pruners else []
        return count_cost(
            HostShape.of(task.model),
            task.schedule,
            selectors=[task.merger, *heads],
            dtype=task.settings.host.dtype,
        )

    def _measure(self, batch: HostBatch, fraction: float) -> dict[str, Tensor]:
        """Return sums over the rows that have an answer; of the loss, over the answer tokens."""
        task = self.task
        has_answer = (answers(batch) != -100).any(-1)

        def right(context: AbstractContextManager) -> tuple[Tensor, Observed]:
            observed = observe(task.model, task.watched, batch, context)
            return (right_answers(observed, batch) & has_answer).sum().float(), observed

        relaxation = task.relaxation(fraction, training=False)
        relaxer = TrainingRelaxer(task.merger, task.pruners, relaxation, task.settings.size_bias)
        words = batch.question_mask
        sums = {"count": has_answer.sum().float()}
        whole = None
        if self.baseline is None or task.needs_teacher:
            sums["accuracy_baseline"], whole = right(nullcontext())
        if task.merger is not None:
            merge_only = replace(task.plan, cuts=())
            sums["accuracy_merge_only"], _ = right(pruning(task.model, merge_only, words))
        options = {"relaxer": relaxer, "acts_on": task.settings.mask_acts_on}
        sums["accuracy_soft"], soft = right(masking(task.model, task.plan, words, **options))
        sums["accuracy_hard"], _ = right(pruning(task.model, task.plan, words))
        sums["num_answer"] = (answers(batch) != -100).sum().float()
        losses = losses_of(soft, whole if task.needs_teacher else None, relaxer, batch)
        weighted = [
            weight * losses[k] for k, weight in task.weights.items() if weight and k in losses
        ]
        sums["loss"] = sum(weighted) * sums["num_answer"]
        if task.discriminator is not None and whole is not None:
            mask = answer_mask(batch)
            for name, observed in (("real", whole), ("fake", soft)):
                probability = task.discriminator(observed.states, mask).sigmoid()
                sums[f"disc_prob_{name}"] = torch.where(has_answer, probability, 0.0).sum()
        return sums

    def _report(self, problems: list[Problem]) -> None:
        """Log each problem when it begins, and again if it comes back."""
        for problem in problems:
            if problem.name not in self.reported:
                logger.warning("%s", problem)
        self.reported = {problem.name for problem in problems}


def step_metrics(
    losses: Mapping[str, Scalar], kept: Mapping[int, Int[Tensor, " images"]]
) -> dict[str, Scalar]:
    """Return every loss before its weight, and the vision tokens left after each stage."""
    raw = {f"raw/{name}": loss.detach() for name, loss in losses.items()}
    names = {layer: f"layer_{layer}" if layer else "merge" for layer in kept}
    return raw | {f"kept/{names[layer]}": count.float().mean() for layer, count in kept.items()}


def step_line(step: int, groups: Sequence[str], metrics: Mapping[str, float | Scalar]) -> str:
    """Return one line: losses of the parts, temperature, kept tokens, discriminator."""
    values = {name: float(value) for name, value in metrics.items()}
    losses = {name[4:]: value for name, value in values.items() if name.startswith("raw/")}
    critic = {name: losses.pop(name) for name in ("real", "fake") if name in losses}
    parts = " and ".join(name for name in groups if name != "discriminator")
    line = [f"step {step}: {parts}: {listed(losses)}"]
    line += [f"discriminator: {listed(critic)}"] if critic else []
    kept = [f"{value:g}" for name, value in values.items() if name.startswith("kept/")]
    line += [listed({"temperature": values["temperature"]}), f"kept {' > '.join(kept)}"]
    probabilities = {name: value for name, value in values.items() if name.startswith("disc_prob_")}
    return " | ".join([*line, *([listed(probabilities)] if probabilities else [])])


def listed(values: Mapping[str, float]) -> str:
    """Return `name value, name value, ...`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
