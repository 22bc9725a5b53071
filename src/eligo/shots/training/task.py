"""The task of the training loop, and `fit_pointer`, which trains a model in a temporary folder."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.shots import metrics
from eligo.shots.config import (
    LOSSES,
    AnyPointerConfig,
    FitConfig,
    PointerSelectorV3Config,
    SelectorTrainConfig,
)
from eligo.shots.data.records import (
    EncodedRecord,
    Record,
    RecordBatch,
    encode_record,
    tabulate,
)
from eligo.shots.model.pointer import PointerOutput, PointerSelector
from eligo.shots.model.pretrained import build_model
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import shuffled
from eligo.train import (
    OptimizerConfig,
    OptimizerSpec,
    Progress,
    ScheduleConfig,
    StepOutput,
    Task,
    TrainConfig,
    epoch_rows,
    fit,
    load_weights,
)
from eligo.train.rng import seed_everything

_EVAL_BATCH = 256
_WARMUP = 0.05
_EVALUATIONS = 20  # of a run that min_steps makes longer


class PointerTask(Task):
    """Teacher forcing on records; validation by teacher forcing and by the model's own picks."""

    def __init__(
        self,
        config: AnyPointerConfig,
        records: Sequence[Record],
        pool: Pool,
        *,
        batch_size: int,
        lr: float,
        weight_decay: float,
        validation: float,
        seed: int,
    ) -> None:
        """Build a fresh model."""
        records = [record for record in records if record.picks]
        scored = any(r.scores is not None or r.step_scores is not None for r in records)
        if isinstance(config, PointerSelectorV3Config) and not scored:
            raise InputError(
                "V3 learns from the teacher's scores, but no record has any; give them (`scores` "
                "in a JSON file, Record(scores=...) in Python), or train V1, which is V3 without "
                "them"
            )
        parts = split_by_group(records, validation, seed)
        seed_everything(seed)
        self.model, self.pool, self.seed = build_model(config), pool, seed
        self.modules = {"pointer": self.model}
        self.training, self.validation = (
            [encode_record(record, pool, config.K, seed) for record in part] for part in parts
        )
        self.batch_size = min(batch_size, len(self.training))
        schedule = ScheduleConfig(kind="cosine", warmup=_WARMUP)
        optimizer = OptimizerConfig(lr=lr, weight_decay=weight_decay, schedule=schedule)
        self.optimizers = {"all": OptimizerSpec(optimizer, ("pointer",))}

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the records."""
        return len(self.training) // self.batch_size

    @property
    def monitor(self) -> str:
        """The metric that chooses the best step; NDCG needs different scores of all candidates."""
        ranked = any(_differ(record.step_scores) for record in self.validation)
        return "ndcg" if ranked else "mrr"

    def metric_names(self) -> list[str]:
        """Names of the metrics of `batch_metrics` that the validation records have."""
        hits = [f"{kind}top{k}" for kind in ("", "free_") for k in (1, 3, 5)]
        names = ["loss", "ce_loss", *hits, "mrr", "set_recall", "logits_std"]
        records = self.validation
        scored = any(r.scores is not None or r.step_scores is not None for r in records)
        if scored and self.model.config.version == "v3":
            names.append("ranking_loss")
        if any(record.scores is not None and (record.scores > 0).any() for record in records):
            names.append("ndcg_labels")
        return [*names, *{self.monitor} - {"mrr"}]

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[RecordBatch]:
        """Yield part `rank` of the batch of every step, from shuffled epochs."""
        table, part = tabulate(self.training), self.batch_size // world_size
        order = epoch_rows(
            len(self.training), self.batch_size, self.seed, start_step, torch.device("cpu")
        )
        for _, rows in order:
            yield table.batch(rows[rank * part : (rank + 1) * part], self.pool).to(device)

    def step(self, batch: RecordBatch, progress: Progress) -> StepOutput:  # noqa: ARG002
        """Return cross-entropy and, for V3, the weighted ranking loss; metrics: without weight."""
        output = call(self.model, batch)
        ce, ranking = output["ce_loss"], output["ranking_loss"]
        assert ce is not None
        if ranking is None:
            return StepOutput({"ce": ce}, {"ce_loss": ce})
        weighted = self.model.config.ranking_loss_weight * ranking
        return StepOutput({"ce": ce, "ranking": weighted}, {"ce_loss": ce, "ranking_loss": ranking})

    def evaluate(self) -> Mapping[str, float]:
        """Return means over the validation records."""
        return mean_metrics(record_metrics(self.model, self.validation, self.pool))


def fit_pointer(
    config: AnyPointerConfig, records: Sequence[Record], pool: Pool, settings: FitConfig
) -> PointerSelector:
    """Train a model and return it at its best step on held-out records."""
    return fit_task(config, records, pool, settings).model


def fit_task(
    config: AnyPointerConfig, records: Sequence[Record], pool: Pool, settings: FitConfig
) -> PointerTask:
    """Train a model; the task has it at its best step, and the held-out records."""
    task = PointerTask(
        config, records, pool,
        batch_size=settings.batch_size, lr=settings.lr, weight_decay=settings.weight_decay,
        validation=settings.validation, seed=settings.seed,
    )  # fmt: skip
    steps = counted_steps(settings, settings.num_epochs, task.steps_per_epoch)
    with TemporaryDirectory(prefix="eligo-") as folder:
        result = fit(
            task,
            TrainConfig(
                out=Path(folder), name=config.version, seed=settings.seed,
                batch_size=task.batch_size, monitor=task.monitor, mode="max",
                **{"patience": settings.patience, **steps},
            ),
        )  # fmt: skip
        load_weights(result.chosen, task.modules)
    task.model.cpu().eval()
    return task


def counted_steps(
    settings: FitConfig | SelectorTrainConfig, num_epochs: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Return steps, evaluations and patience of a run that is counted in epochs.

    With a few dozen records an epoch is one step, and 20 steps would hardly train the model.
    """
    steps, every = num_epochs * steps_per_epoch, steps_per_epoch
    changes: dict[str, Any] = {}
    if steps < settings.min_steps:
        steps, every = settings.min_steps, max(every, settings.min_steps // _EVALUATIONS)
        changes["patience"] = None
    return {**changes, "total_steps": steps, "evaluate_every": every, "checkpoint_every": every}


def split_by_group(
    records: Sequence[Record], share: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """Return training and validation records that share no domain, group or query."""
    queries = [record.query for record in records]
    keys = [query.group or query.id for query in queries]
    if len({query.domain for query in queries}) > 1:  # validate on unseen domains
        keys = [query.domain or "" for query in queries]
    groups = sorted(set(keys))
    if len(groups) < 2:
        raise InputError(
            f"fit: got {len(records)} records with picks, of {len(groups)} group(s), expected at "
            "least 2 groups: one to learn from, one to choose the best step by"
        )
    order = shuffled(torch.arange(len(groups)), seed, "split").tolist()
    held_out = {groups[index] for index in order[: max(1, math.floor(share * len(groups)))]}
    training = [r for r, key in zip(records, keys, strict=True) if key not in held_out]
    return training, [r for r, key in zip(records, keys, strict=True) if key in held_out]


def _differ(step_scores: Tensor | None) -> bool:
    """Return whether the finite scores of the first step differ."""
    if step_scores is None or not len(step_scores):
        return False
    first = step_scores[0][step_scores[0].isfinite()]
    return bool(len(first)) and bool(first.max() > first.min())


def call(model: PointerSelector, batch: RecordBatch) -> PointerOutput:
    """Run the model on a batch."""
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
def batch_metrics(model: PointerSelector, batch: RecordBatch) -> dict[str, Tensor]:
    """Return one value per record; `free_`: after the model's own picks, which count as misses."""
    output = call(model, batch)
    logits, labels = output["logits"], batch.labels
    steps = labels.shape[1]
    picks = model.predict(batch.query, batch.candidates, shots=steps, cand_mask=batch.mask)
    free = model(batch.query, batch.candidates, picks.predictions, cand_mask=batch.mask)["logits"]
    losses = {name: output[name] for name in LOSSES}
    values = {
        **{name: loss.expand(len(labels)) for name, loss in losses.items() if loss is not None},
        **{f"top{k}": metrics.step_hits(logits, labels, k) for k in (1, 3, 5)},
        **{f"free_top{k}": metrics.step_hits(free, labels, k) for k in (1, 3, 5)},
        "mrr": metrics.reciprocal_rank(logits[:, 0], labels),
        "set_recall": metrics.set_recall(picks.predictions, labels),
        "logits_std": metrics.logits_std(logits[:, 0]),
    }
    if batch.step_scores is not None:
        values["ndcg"] = metrics.ndcg(logits[:, 0], batch.step_scores[:, 0], steps)
    if batch.beam_scores is not None:
        values["ndcg_labels"] = metrics.ndcg_labels(logits[:, 0], labels, batch.beam_scores, steps)
    return values


def record_metrics(
    model: PointerSelector, records: Sequence[EncodedRecord], pool: Pool
) -> dict[str, Float[Tensor, " records"]]:
    """Return the metrics of each record; NaN where one does not apply."""
    if not records:
        return {}
    device = next(model.parameters()).device
    parts: dict[str, list[Tensor]] = {}
    table = tabulate(records)
    for positions in torch.arange(len(records)).split(_EVAL_BATCH):
        batch = table.batch(positions, pool).to(device)
        for name, values in batch_metrics(model, batch).items():
            parts.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in parts.items()}


def mean_metrics(values: Mapping[str, Float[Tensor, " records"]]) -> dict[str, float]:
    """Return means over records, without metrics that no record has."""
    means = {name: float(each.nanmean()) for name, each in values.items()}
    return {name: mean for name, mean in means.items() if mean == mean}
