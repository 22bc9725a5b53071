"""What a training is judged by on its validation split, and what it tells its user.

The guide judges by soft masks, which save nothing, and by a keep ratio that is constant; here
`accuracy_hard`, with tokens really removed, chooses the checkpoint. An answer counts if every token
of the usual answer is the likeliest: what greedy decoding would say, in one pass for all variants.
`eligo tokens evaluate` generates, and counts by the official VQA accuracy.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eligo.tokens.cost.count import Cost, count_cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.hooks.masking import masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.model.relaxer import TrainingRelaxer
from eligo.tokens.training.batch import HostBatch
from eligo.tokens.training.health import Trouble, find_troubles
from eligo.tokens.training.objective import Observed, answer_mask, answers, observe, right_answers

if TYPE_CHECKING:
    from eligo.tokens.training.task import TokensTask

logger = logging.getLogger("eligo.tokens")

_BATCH = 128


class Validation:
    """The validation split of a task."""

    def __init__(self, task: "TokensTask") -> None:
        self.task = task
        self.baseline: float | None = None
        """Accuracy of the whole model: the host is frozen, so it is found once."""
        self.told: set[str] = set()

    def run(self, fraction: float) -> dict[str, float]:
        """All metrics when a fraction of the training is done; troubles are logged."""
        sums: dict[str, Tensor] = {}
        for batch in self._batches():
            for name, value in self._measure(batch, fraction).items():
                sums[name] = sums[name] + value if name in sums else value
        names = list(sums)
        values = dict(zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True))
        asked = values.pop("asked")
        metrics = {name: value / max(1.0, asked) for name, value in values.items()}
        if self.baseline is None:
            self.baseline = metrics["accuracy_baseline"]
        temperature = self.task.settings.temperature
        metrics |= {"accuracy_baseline": self.baseline, "temperature": temperature.at(fraction)}
        metrics |= self.cost().metrics()
        found = find_troubles(
            metrics | {"temperature_start": temperature.start, "temperature_end": temperature.end},
            fraction,
        )
        self._tell(found)
        return metrics | {"troubles": float(len(found))}

    def names(self) -> list[str]:
        """What `run` returns."""
        task = self.task
        shares = ["baseline", "soft", "hard", *(["merge_only"] if task.merger is not None else [])]
        judged = ["disc_prob_real", "disc_prob_fake"] if task.discriminator is not None else []
        accuracies = [f"accuracy_{name}" for name in shares]
        return [*accuracies, *judged, "temperature", *self.cost().metrics(), "troubles"]

    def cost(self) -> Cost:
        """What the plan saves, on the data's usual length of text."""
        task = self.task
        heads = [task.pruners[layer] for layer, _ in task.schedule.cuts] if task.pruners else []
        return count_cost(
            HostShape.of(task.model),
            task.schedule,
            selectors=[task.merger, *heads],
            dtype=task.settings.host.dtype,
        )

    def _batches(self):
        task = self.task
        size = min(_BATCH, max(1, task.settings.train.batch_size))
        return task.source.validation(size, next(task.model.parameters()).device)

    def _measure(self, batch: HostBatch, fraction: float) -> dict[str, Tensor]:
        """Sums over the rows that have an answer."""
        task = self.task
        counts = (answers(batch) != -100).any(-1)

        def right(context: AbstractContextManager) -> tuple[Tensor, Observed]:
            seen = observe(task.model, task.watched, batch, context)
            return (right_answers(seen, batch) & counts).sum().float(), seen

        relaxation = task.relaxation(fraction, training=False)
        relaxer = TrainingRelaxer(task.merger, task.pruners, relaxation, task.settings.size_bias)
        words = batch.question_mask
        sums = {"asked": counts.sum().float()}
        whole = None
        if self.baseline is None or task.discriminator is not None:
            sums["accuracy_baseline"], whole = right(nullcontext())
        if task.merger is not None:
            merge_only = replace(task.plan, cuts=())
            sums["accuracy_merge_only"], _ = right(pruning(task.model, merge_only, words))
        sums["accuracy_soft"], soft = right(masking(task.model, task.plan, words, relaxer=relaxer))
        sums["accuracy_hard"], _ = right(pruning(task.model, task.plan, words))
        if task.discriminator is not None and whole is not None:
            mask = answer_mask(batch)
            for name, seen in (("real", whole), ("fake", soft)):
                judged = task.discriminator(seen.states, mask).sigmoid()
                sums[f"disc_prob_{name}"] = torch.where(counts, judged, 0.0).sum()
        return sums

    def _tell(self, troubles: list[Trouble]) -> None:
        """Each trouble in full when it begins, and again if it comes back."""
        for trouble in troubles:
            if trouble.name not in self.told:
                logger.warning("%s", trouble)
        self.told = {trouble.name for trouble in troubles}
