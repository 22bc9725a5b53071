"""From records to a trained model, by the one training loop, in a folder that goes away."""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from eligo.config import Config
from eligo.errors import InputError
from eligo.shots.data.draws import shuffled
from eligo.shots.data.records import Record, as_example
from eligo.shots.model.build import build_model
from eligo.shots.model.config import AnyPointerConfig, PointerSelectorV3Config
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.training.fit_config import FitConfig
from eligo.shots.training.task import PointerTask
from eligo.train import OptimizerConfig, ScheduleConfig, TrainConfig, fit, load_weights
from eligo.train.rng import seed_everything

_WARMUP = 0.05


def fit_pointer(
    config: AnyPointerConfig, records: Sequence[Record], pool: Pool, settings: FitConfig
) -> PointerSelector:
    """The model at its best step on records that it did not learn from."""
    task = pointer_task(
        config, records, pool,
        batch_size=settings.batch_size, lr=settings.lr, weight_decay=settings.weight_decay,
        validation=settings.validation, seed=settings.seed,
    )  # fmt: skip
    steps = max(settings.min_steps, settings.num_epochs * task.steps_per_epoch)
    with TemporaryDirectory(prefix="eligo-") as folder:
        result = fit(
            task,
            TrainConfig(
                out=Path(folder), name=config.version, seed=settings.seed, total_steps=steps,
                batch_size=task.batch_size, evaluate_every=max(1, steps // 20),
                checkpoint_every=steps, patience=settings.patience,
                monitor=task.monitor, mode="max",
            ),
        )  # fmt: skip
        load_weights(result.chosen, task.modules)
    return task.model.cpu().eval()


def pointer_task(
    config: AnyPointerConfig,
    records: Sequence[Record],
    pool: Pool,
    *,
    batch_size: int,
    lr: float,
    weight_decay: float,
    validation: float,
    seed: int,
    whole: Config | None = None,
) -> PointerTask:
    """A fresh model and its examples, split by group; `whole` is saved beside checkpoints."""
    records = [record for record in records if record.picks]  # the others teach nothing
    if isinstance(config, PointerSelectorV3Config) and not any(_scored(r) for r in records):
        raise InputError(
            "V3 learns from the teacher's scores, but no record has any; give Record(scores=...) "
            "or step_scores, or fit V1, which V3 is without them"
        )
    parts = split_by_group(records, validation, seed)
    seed_everything(seed)
    model = build_model(config)
    training, held_out = (
        [as_example(record, pool, config.K, seed) for record in part] for part in parts
    )
    return PointerTask(
        model, pool, training, held_out,
        optimizer=OptimizerConfig(
            lr=lr,
            weight_decay=weight_decay,
            schedule=ScheduleConfig(kind="cosine", warmup=_WARMUP),
        ),
        batch_size=min(batch_size, len(training)),
        seed=seed,
        config=whole,
    )  # fmt: skip


def split_by_group(
    records: Sequence[Record], share: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """Training and validation records; a domain, a group or a query is never on both sides."""
    queries = [record.query for record in records]
    keys = [query.group or query.id for query in queries]
    if len({query.domain for query in queries}) > 1:  # what is wanted is to choose in new ones
        keys = [query.domain or "" for query in queries]
    groups = sorted(set(keys))
    if len(groups) < 2:
        raise InputError(
            f"fit: got {len(records)} records with picks, of {len(groups)} group(s), expected at "
            "least 2 groups: one to learn from, one to choose the best step by"
        )
    order = shuffled(torch.arange(len(groups)), seed, "split").tolist()
    held_out = {groups[place] for place in order[: max(1, math.floor(share * len(groups)))]}
    training = [r for r, key in zip(records, keys, strict=True) if key not in held_out]
    return training, [r for r, key in zip(records, keys, strict=True) if key in held_out]


def _scored(record: Record) -> bool:
    return record.scores is not None or record.step_scores is not None
