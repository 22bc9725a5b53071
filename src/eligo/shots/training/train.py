"""Train a selector on records and write it to a run folder.

Its subfolder `selector/` holds the best model with its pool, and `pipeline.json`: how a new query
is embedded and how its candidates are drawn.
"""

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState

from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.shots import metrics
from eligo.shots.baselines import KNN, MMR
from eligo.shots.config import (
    Objective,
    RecordsConfig,
    SamplerConfig,
    SelectorTrainConfig,
    ShotsTrainConfig,
)
from eligo.shots.data.records import Record
from eligo.shots.inference.embed import open_embedded
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler, shuffled
from eligo.shots.selector import INNER, PoolSelector
from eligo.shots.teacher.read import (
    NOISE_WEIGHT,
    LabelledRecords,
    Labels,
    read_legacy_records,
    read_meta,
    read_records,
)
from eligo.shots.teacher.shards import DATA, META
from eligo.shots.training.held_out import HeldOut, compare
from eligo.shots.training.task import PointerTask, counted_steps
from eligo.train import FitResult, fit, load_weights

PIPELINE = "pipeline.json"
_FLAT = (
    "the scores hardly tell candidates apart; if it does not rise, train longer or with a larger "
    "--train.lr, or lower --model.temperature"
)
_SHARP = (
    "the model is too sure of few candidates; if it does not fall, raise --model.temperature, "
    "--model.label_smoothing or --train.weight_decay"
)
logger = logging.getLogger("eligo.shots")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The records of a config, and the settings that produced them."""

    pool: Pool
    labelled: LabelledRecords
    sampler: SamplerConfig
    embed: dict[str, Any]
    prompt: dict[str, str]
    """How the teacher wrote prompts: placement, instruction."""


@dataclass(frozen=True)
class SelectorFit(FitResult):
    """The result of `train_selector`."""

    best_epoch: float | None
    """Passes over the training records until the best step."""


def train_selector(config: ShotsTrainConfig, *, resume: bool = False) -> SelectorFit:
    """Train, and write the best model as a selector for `predict` and `evaluate`."""
    data = load_records(config.data, config.model.K, config.train.seed)
    task = selector_task(config, data)
    assert isinstance(task.config, ShotsTrainConfig)
    untrained = copy.deepcopy(task.model).eval()
    # The range was published for cosines alone.
    check = None if task.config.model.residual else _SpreadCheck()
    fitted = fit(task, task.config.train, resume=resume, on_evaluate=check)
    best_epoch = None if fitted.best_step is None else fitted.best_step / task.steps_per_epoch
    result = SelectorFit(**vars(fitted), best_epoch=best_epoch)
    if not PartialState().is_main_process:
        return result
    load_weights(result.chosen, task.modules)
    model = task.model.cpu().eval()
    held_out = compare(model, untrained, task)
    if held_out.kept != "learned":
        remark = f"{held_out.remark}; the simple selector {held_out.kept} is kept instead"
        held_out = replace(held_out, remark=remark)
    selector = _kept(held_out, model, untrained.cpu(), data.pool)
    _save_selector(result.folder / INNER, selector, data, held_out)
    if held_out.remark is not None:
        logger.warning(held_out.remark)
    return result


def _kept(
    held_out: HeldOut, trained: PointerSelector, untrained: PointerSelector, pool: Pool
) -> PoolSelector:
    """Return the learned selector, or the simple one that is no worse."""
    if held_out.kept == "mmr":
        return MMR(balance=held_out.balance).with_pool(pool)
    if held_out.kept == "nearest" and not untrained.config.residual:
        return KNN().with_pool(pool)
    # With `residual`, an untrained model picks the nearest examples.
    return LearnedSelector.of(trained if held_out.kept == "learned" else untrained, pool)


def selector_task(config: ShotsTrainConfig, data: TrainingData) -> PointerTask:
    """Build the task; its config has the sizes, steps and monitor that follow from the records."""
    if data.labelled.bad_labels:
        logger.info("%d bad labels were left out", data.labelled.bad_labels)
    if data.labelled.noise:
        logger.info(
            "%d of %d queries have no list that is better than no examples; their records weigh "
            "%s instead of 1",
            data.labelled.noise,
            len({record.query.id for record in data.labelled.records}),
            NOISE_WEIGHT,
        )
    records = _draw_queries(data.labelled.records, config.data.num_anchors, config.train.seed)
    train = config.train
    # `predict` picks `shot_num` by default, so not more than the records teach.
    longest = max([1, *(len(record.picks) for record in records)])
    sizes = {"d_model": data.pool.vectors.shape[1], "shot_num": min(config.model.shot_num, longest)}
    model_config = config.model.replace(sizes)
    task = PointerTask(
        model_config, records, data.pool,
        batch_size=train.batch_size, lr=train.lr, weight_decay=train.weight_decay,
        validation=config.data.validation, seed=train.seed,
    )  # fmt: skip
    changes: dict[str, Any] = {"batch_size": task.batch_size}
    if train.num_epochs is not None:
        changes |= counted_steps(train, train.num_epochs, task.steps_per_epoch)
        _warn_of_unused_steps(train, changes["total_steps"])
    if train.monitor == "ndcg" and task.monitor != "ndcg":
        changes["monitor"] = task.monitor
        logger.info(
            "train.monitor: %s instead of ndcg, which needs a score for every candidate, not all "
            "of them equal; no held-out query has such scores",
            task.monitor,
        )
    task.config = config.replace({"model": model_config, "train": train.replace(changes)})
    return task


class _SpreadCheck:
    """Called after every evaluation; warns once of logits that are too flat or too sharp."""

    def __init__(self) -> None:
        self.warned = False

    def __call__(self, step: int, values: Mapping[str, float]) -> bool:
        """Return False: training goes on."""
        low, high = metrics.HEALTHY_STD
        std = values.get("logits_std", low)
        if low <= std <= high or self.warned or not PartialState().is_main_process:
            return False
        self.warned = True
        logger.warning(
            "logits_std is %.3f at step %d, outside %s to %s: %s",
            std, step, low, high, _FLAT if std < low else _SHARP,
        )  # fmt: skip
        return False


def _warn_of_unused_steps(train: SelectorTrainConfig, steps: int) -> None:
    default = SelectorTrainConfig.model_fields["total_steps"].default
    if train.total_steps not in (steps, default):
        logger.warning(
            "train.total_steps: %d is not used: train.num_epochs %s and train.min_steps %d make "
            "%d steps; for %d steps, give --train.num_epochs None",
            train.total_steps, train.num_epochs, train.min_steps, steps, train.total_steps,
        )  # fmt: skip


def _save_selector(
    folder: Path, selector: PoolSelector, data: TrainingData, held_out: HeldOut
) -> None:
    selector.save_pretrained(folder)
    about = {
        "sampler": data.sampler.model_dump(mode="json"),
        "embed": data.embed,
        "prompt": data.prompt,
        "held_out": asdict(held_out),
    }
    write_text(folder / PIPELINE, json.dumps(about, indent=1) + "\n")


def read_held_out(folder: Path) -> dict[str, Any]:
    """Read the comparison on held-out queries of a run."""
    return json.loads((folder / INNER / PIPELINE).read_text(encoding="utf-8"))["held_out"]


def load_records(config: RecordsConfig, num_candidates: int, seed: int) -> TrainingData:
    """Load a teacher's folder, or a file of the V3 design or of Lever-LM."""
    path = find_records(config)
    if path.is_dir():
        return _load_taught(config, path)
    if config.embedded is None:
        raise InputError(
            f"{path}: names examples by id only; give the folder of `eligo shots embed` that holds "
            "them (--data.embedded; in evaluate, --data)"
        )
    pool, queries, embed = open_embedded(config.embedded)
    sampler = SamplerConfig(
        kind=config.sampler or "random", num_candidates=num_candidates, seed=seed
    )
    labelled = read_legacy_records(
        path, Sampler(pool, sampler), queries,
        labels=config.labels, on_bad_label=config.on_bad_label,
    )  # fmt: skip
    return TrainingData(pool, labelled, sampler, embed, {"placement": "prepend", "instruction": ""})


class Taught(NamedTuple):
    """Records and the pool that they choose from, in the order of `fit`."""

    records: list[Record]
    pool: Pool


def read_taught(
    folder: str | Path,
    embedded: str | Path | None = None,
    *,
    objective: Objective | None = None,
    labels: Labels = "best",
) -> Taught:
    """Read a folder of `eligo shots teach`: `LearnedSelector("v1").fit(*read_taught("taught"))`.

    `embedded` is the folder of its examples, if that has moved; `objective` and `labels` as in
    `eligo shots train`.
    """
    config = RecordsConfig(
        path=Path(folder),
        embedded=None if embedded is None else Path(embedded),
        objective=objective,
        labels=labels,
    )
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: is no folder; expected one that `eligo shots teach` wrote")
    data = load_records(config, num_candidates=1, seed=0)
    return Taught(data.labelled.records, data.pool)


def find_records(config: RecordsConfig) -> Path:
    """Return the folder with meta.json, or the JSON file, that a config names."""
    path = config.path
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(
            f"data.path: there is no {path}; expected a folder that `eligo shots teach` wrote, or "
            "a JSON file of the V3 design or of Lever-LM"
        )
    if config.split is not None and (path / config.split / META).exists():
        return path / config.split
    if (path / META).exists():
        return path
    files = sorted(path.glob("*.json"))
    for part in (config.split, config.objective):
        narrowed = [file for file in files if part is not None and part in file.name]
        files = narrowed or files
    if len(files) != 1:
        listed = ", ".join(file.name for file in files) or "no JSON file"
        raise InputError(
            f"data.path: {path} holds {listed}; expected records of `eligo shots teach`, or one "
            "file that --data.split and --data.objective identify"
        )
    return files[0]


def _load_taught(config: RecordsConfig, folder: Path) -> TrainingData:
    meta = read_meta(folder)
    sampler = SamplerConfig(**meta["sampler"])
    if config.sampler not in (None, sampler.kind):
        raise InputError(
            f"data.sampler: got {config.sampler}, but {folder} was taught on candidates of the "
            f"sampler {sampler.kind}; teach again, or leave it out"
        )
    pool, queries, embed = open_embedded(config.embedded or Path(meta[DATA]))
    labelled = read_records(folder, pool, queries, objective=config.objective, labels=config.labels)
    prompt = {"placement": meta["placement"], "instruction": meta.get("instruction", "")}
    return TrainingData(pool, labelled, sampler, embed, prompt)


def _draw_queries(records: list[Record], count: int | None, seed: int) -> list[Record]:
    if count is None:
        return records
    names = sorted({record.query.id for record in records})
    if count > len(names):
        logger.info("data.num_anchors: got %d, but there are only %d queries", count, len(names))
    order = shuffled(torch.arange(len(names)), seed, "anchors").tolist()
    kept = {names[index] for index in order[:count]}
    return [record for record in records if record.query.id in kept]
