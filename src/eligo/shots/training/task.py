"""The training loop's task: records in, a pointer selector out."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.config import Config
from eligo.shots import metrics
from eligo.shots.data.records import Batch, Example, collate, tabulate
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.train import OptimizerConfig, OptimizerSpec, Progress, StepOutput, Task, epoch_rows

_EVALUATED = 256  # examples at a time


class PointerTask(Task):
    """Teacher forcing on examples; validation by teacher forcing and by free picks."""

    def __init__(
        self,
        model: PointerSelector,
        pool: Pool,
        training: Sequence[Example],
        validation: Sequence[Example],
        *,
        optimizer: OptimizerConfig,
        batch_size: int,
        seed: int,
        config: Config | None = None,
    ) -> None:
        self.model, self.pool = model, pool
        self.modules = {"pointer": model}
        self.optimizers = {"all": OptimizerSpec(optimizer, ("pointer",))}
        self.config = config
        self.training, self.validation = training, validation
        self.batch_size, self.seed = batch_size, seed

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every record is seen once."""
        return len(self.training) // self.batch_size

    @property
    def monitor(self) -> str:
        """What chooses the best step: NDCG needs a score for every candidate, and not all alike."""
        ranked = any(_differ(example.step_scores) for example in self.validation)
        return "ndcg" if ranked else "mrr"

    def metric_names(self) -> list[str]:
        """As in `measured`."""
        hits = [f"{kind}top{k}" for kind in ("", "free_") for k in (1, 3, 5)]
        return ["loss", *hits, "mrr", "set_recall", "logits_std", *{self.monitor} - {"mrr"}]

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Batch]:
        """Part `rank` of the batch of every step: shuffled epochs."""
        table, part = tabulate(self.training), self.batch_size // world_size
        order = epoch_rows(
            len(self.training), self.batch_size, self.seed, start_step, torch.device("cpu")
        )
        for _, rows in order:
            yield table.batch(rows[rank * part : (rank + 1) * part], self.pool).to(device)

    def step(self, batch: Batch, progress: Progress) -> StepOutput:  # noqa: ARG002
        """Cross-entropy, and V3's ranking loss."""
        output = call(self.model, batch)
        assert output["ce_loss"] is not None
        losses: dict[str, Tensor] = {"ce": output["ce_loss"]}
        if output["ranking_loss"] is not None:
            losses["ranking"] = self.model.config.ranking_loss_weight * output["ranking_loss"]
        return StepOutput(losses)

    def evaluate(self) -> Mapping[str, float]:
        """Means over the validation examples."""
        return means_of(values_over(self.model, self.validation, self.pool))


def _differ(step_scores: Tensor | None) -> bool:
    """Whether the first step's scores, those that there are, rank anything."""
    if step_scores is None or not len(step_scores):
        return False
    first = step_scores[0][step_scores[0].isfinite()]
    return bool(len(first)) and bool(first.max() > first.min())


def call(model: PointerSelector, batch: Batch):
    """The model on a batch."""
    return model(
        batch.query,
        batch.candidates,
        batch.labels,
        cand_mask=batch.mask,
        beam_scores=batch.beam_scores,
        step_scores=batch.step_scores,
        weights=batch.weights,
    )


@torch.no_grad()
def measured(model: PointerSelector, batch: Batch) -> dict[str, Tensor]:
    """One value for each row; `free_`: behind the model's own picks, a label among them a miss."""
    output = call(model, batch)
    logits, labels = output["logits"], batch.labels
    steps = labels.shape[1]
    picks = model.predict(batch.query, batch.candidates, shots=steps, cand_mask=batch.mask)
    free = model(batch.query, batch.candidates, picks.predictions, cand_mask=batch.mask)["logits"]
    assert output["loss"] is not None
    found = {
        "loss": output["loss"].expand(len(labels)),
        **{f"top{k}": metrics.step_hits(logits, labels, k) for k in (1, 3, 5)},
        **{f"free_top{k}": metrics.step_hits(free, labels, k) for k in (1, 3, 5)},
        "mrr": metrics.reciprocal_rank(logits[:, 0], labels),
        "set_recall": metrics.set_recall(picks.predictions, labels),
        "logits_std": metrics.logits_std(logits[:, 0]),
    }
    if batch.step_scores is not None:
        found["ndcg"] = metrics.ndcg(logits[:, 0], batch.step_scores[:, 0], steps)
    return found


def values_over(
    model: PointerSelector, examples: Sequence[Example], pool: Pool
) -> dict[str, Float[Tensor, " examples"]]:
    """What was measured of each example; NaN where it has nothing to say."""
    device = next(model.parameters()).device
    found: dict[str, list[Tensor]] = {}
    for start in range(0, len(examples), _EVALUATED):
        batch = collate(examples[start : start + _EVALUATED], pool).to(device)
        for name, values in measured(model, batch).items():
            found.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in found.items()}


def means_of(values: Mapping[str, Float[Tensor, " examples"]]) -> dict[str, float]:
    """Means over examples; what no example has is left out."""
    means = {name: float(each.nanmean()) for name, each in values.items()}
    return {name: mean for name, mean in means.items() if mean == mean}
