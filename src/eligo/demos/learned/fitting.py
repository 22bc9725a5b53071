"""From records to a trained model, by the one training loop, in a folder that goes away."""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from eligo.demos.data.draws import shuffled
from eligo.demos.data.pool import Pool
from eligo.demos.data.records import Record, as_example
from eligo.demos.learned.config import FitConfig
from eligo.demos.learned.task import PointerTask
from eligo.demos.models.build import build_model
from eligo.demos.models.config import AnyPointerConfig, PointerSelectorV3Config
from eligo.demos.models.pointer import PointerSelector
from eligo.errors import InputError
from eligo.train import OptimizerConfig, ScheduleConfig, TrainConfig, fit, load_weights
from eligo.train.rng import seed_everything

_WARMUP = 0.05


def fit_pointer(
    config: AnyPointerConfig, records: Sequence[Record], pool: Pool, settings: FitConfig
) -> PointerSelector:
    """The model at its best step on records that it did not learn from."""
    if isinstance(config, PointerSelectorV3Config) and not any(_scored(r) for r in records):
        raise InputError(
            "V3 learns from the teacher's scores, but no record has any; give Record(scores=...) "
            "or step_scores, or fit V1, which V3 is without them"
        )
    training, validation = split_by_group(records, settings.validation, settings.seed)
    seed_everything(settings.seed)
    model = build_model(config)
    made = [
        [as_example(record, pool, config.K, settings.seed) for record in part]
        for part in (training, validation)
    ]
    batch_size = min(settings.batch_size, len(training))
    per_epoch = len(training) // batch_size
    steps = max(settings.min_steps, settings.num_epochs * per_epoch)
    every = max(1, steps // 20)
    task = PointerTask(
        model, pool, *made,
        optimizer=OptimizerConfig(
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            schedule=ScheduleConfig(kind="cosine", warmup=_WARMUP),
        ),
        batch_size=batch_size,
        seed=settings.seed,
    )  # fmt: skip
    dense = any(record.step_scores is not None for record in validation)
    with TemporaryDirectory(prefix="eligo-") as folder:
        result = fit(
            task,
            TrainConfig(
                out=Path(folder), seed=settings.seed, total_steps=steps, batch_size=batch_size,
                evaluate_every=every, checkpoint_every=steps, patience=settings.patience,
                monitor="ndcg" if dense else "mrr", mode="max",
            ),
        )  # fmt: skip
        load_weights(result.folder / "best", task.modules)
    return model.cpu().eval()


def split_by_group(
    records: Sequence[Record], share: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """Training and validation records; a group (or a query) is never on both sides."""
    keys = [record.query.group or record.query.id for record in records]
    groups = sorted(set(keys))
    if len(groups) < 2:
        raise InputError(
            f"fit: got {len(records)} records of {len(groups)} group(s), expected at least 2 "
            "groups: one to learn from, one to choose the best step by"
        )
    order = shuffled(torch.arange(len(groups)), seed, "split").tolist()
    held_out = {groups[place] for place in order[: max(1, math.floor(share * len(groups)))]}
    training = [r for r, key in zip(records, keys, strict=True) if key not in held_out]
    return training, [r for r, key in zip(records, keys, strict=True) if key in held_out]


def _scored(record: Record) -> bool:
    return record.scores is not None or record.step_scores is not None
