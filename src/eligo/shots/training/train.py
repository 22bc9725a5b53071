"""From records to a selector in a run folder. Sections 2 and 7.

Beside the checkpoints stands `selector/`: the best model with its pool, and `pipeline.json`, which
says how a new query is embedded and which candidates it gets.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.shots.config import RecordsConfig, SelectorTrainConfig, ShotsTrainConfig
from eligo.shots.data.draws import shuffled
from eligo.shots.data.records import Record
from eligo.shots.inference.folder import open_embedded
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.pool.sampler_config import SamplerConfig
from eligo.shots.selector import INNER
from eligo.shots.teacher.read import LabelledRecords, read_legacy_records, read_meta, read_records
from eligo.shots.teacher.shards import DATA, META
from eligo.shots.training.fitting import pointer_task
from eligo.shots.training.held_out import HeldOut, compare, ranked
from eligo.train import FitResult, fit, load_weights

PIPELINE = "pipeline.json"
_EVALUATIONS = 20  # of a run that min_steps makes longer
logger = logging.getLogger("eligo.shots")


@dataclass(frozen=True, eq=False)
class Opened:
    """What a config's data are."""

    pool: Pool
    lessons: LabelledRecords
    sampler: SamplerConfig
    embed: dict[str, Any]
    prompt: dict[str, str]
    """How the teacher wrote prompts: placement, instruction."""


def train_selector(config: ShotsTrainConfig, *, resume: bool = False) -> FitResult:
    """Train, and write the best model as a selector that `predict` and `evaluate` load."""
    opened = open_records(config.data, config.model.K, config.train.seed)
    if opened.lessons.bad_labels:
        logger.info("%d bad labels were left out", opened.lessons.bad_labels)
    records = _drawn(opened.lessons.records, config.data.num_anchors, config.train.seed)
    train = config.train
    # Lists longer than those it learned would be a guess: `predict` picks `shot_num` by default.
    taught = max([1, *(len(record.picks) for record in records)])
    model = config.model.replace(
        {
            "d_model": opened.pool.vectors.shape[1],
            "shot_num": min(config.model.shot_num, taught),
        }
    )
    task = pointer_task(
        model, records, opened.pool,
        batch_size=train.batch_size, lr=train.lr, weight_decay=train.weight_decay,
        validation=config.data.validation, seed=train.seed, whole=config.replace({"model": model}),
    )  # fmt: skip
    counted: dict[str, Any] = {"batch_size": task.batch_size}
    if train.num_epochs is not None:
        counted |= counted_steps(train, task.steps_per_epoch)
        _remark_steps(train, counted["total_steps"])
    if train.monitor == "ndcg":
        counted["monitor"] = task.monitor
    untrained = ranked(task.model, task.validation, opened.pool, task.monitor)
    result = fit(task, train.replace(counted), resume=resume)
    if not PartialState().is_main_process:
        return result
    load_weights(result.chosen, task.modules)
    model = task.model.cpu().eval()
    trained = ranked(model, task.validation, opened.pool, task.monitor)
    found = compare(trained, untrained, task.validation, opened.pool, task.monitor)
    if found.remark is not None:
        logger.warning(found.remark)
    save_selector(result.folder / INNER, LearnedSelector.of(model, opened.pool), opened, found)
    return result


def _remark_steps(train: SelectorTrainConfig, counted: int) -> None:
    """Log that steps that somebody asked for do not count."""
    default = SelectorTrainConfig.model_fields["total_steps"].default
    if train.total_steps not in (counted, default):
        logger.warning(
            "train.total_steps: %d is not used: train.num_epochs %s and train.min_steps %d make "
            "%d steps; for %d steps, give --train.num_epochs None",
            train.total_steps, train.num_epochs, train.min_steps, counted, train.total_steps,
        )  # fmt: skip


def counted_steps(train: SelectorTrainConfig, steps_per_epoch: int) -> dict[str, Any]:
    """Steps, evaluations and patience of a run that is counted in epochs.

    A few dozen records are one step an epoch: 20 epochs, stopped early, would leave the model as
    it was.
    """
    assert train.num_epochs is not None
    steps, every = train.num_epochs * steps_per_epoch, steps_per_epoch
    found: dict[str, Any] = {}
    if steps < train.min_steps:
        steps, every = train.min_steps, max(every, train.min_steps // _EVALUATIONS)
        found["patience"] = None
    return {**found, "total_steps": steps, "evaluate_every": every, "checkpoint_every": every}


def save_selector(
    folder: Path, selector: LearnedSelector, opened: Opened, found: HeldOut | None = None
) -> None:
    """The selector, and what stands around it."""
    selector.save_pretrained(folder)
    about: dict[str, Any] = {
        "sampler": opened.sampler.model_dump(mode="json"),
        "embed": opened.embed,
        "prompt": opened.prompt,
    }
    if found is not None:
        about["held_out"] = asdict(found)
    write_text(folder / PIPELINE, json.dumps(about, indent=1) + "\n")


def held_out_of(folder: Path) -> dict[str, Any]:
    """What the training of a run was found to have taught."""
    return json.loads((folder / INNER / PIPELINE).read_text(encoding="utf-8"))["held_out"]


def open_records(config: RecordsConfig, num_candidates: int, seed: int) -> Opened:
    """A teacher's folder, or a file of the V3 guide or Lever-LM."""
    path = find_records(config)
    if path.is_dir():
        return _open_taught(config, path)
    if config.embedded is None:
        raise InputError(
            f"{path}: names examples by id only; give the folder that `eligo shots embed` wrote of "
            "them (--data.embedded, in evaluate --data)"
        )
    pool, queries, about = open_embedded(config.embedded)
    settings = SamplerConfig(
        kind=config.sampler or "random", num_candidates=num_candidates, seed=seed
    )
    lessons = read_legacy_records(
        path, Sampler(pool, settings), queries,
        labels=config.labels, on_bad_label=config.on_bad_label,
    )  # fmt: skip
    return Opened(pool, lessons, settings, about, {"placement": "prepend", "instruction": ""})


def find_records(config: RecordsConfig) -> Path:
    """The folder with meta.json, or the JSON file, that is meant."""
    path = config.path
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(
            f"data.path: there is no {path}; expected a folder that `eligo shots teach` wrote, or "
            "a JSON file of the V3 guide or Lever-LM"
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
            "file that --data.split and --data.objective tell from the others"
        )
    return files[0]


def _open_taught(config: RecordsConfig, folder: Path) -> Opened:
    meta = read_meta(folder)
    sampler = SamplerConfig(**meta["sampler"])
    if config.sampler not in (None, sampler.kind):
        raise InputError(
            f"data.sampler: got {config.sampler}, but {folder} was taught on candidates of the "
            f"sampler {sampler.kind}; teach again, or leave it out"
        )
    embedded = config.embedded or Path(meta[DATA])
    pool, queries, about = open_embedded(embedded)
    lessons = read_records(folder, pool, queries, objective=config.objective, labels=config.labels)
    prompt = {"placement": meta["placement"], "instruction": meta.get("instruction", "")}
    return Opened(pool, lessons, sampler, about, prompt)


def _drawn(records: list[Record], count: int | None, seed: int) -> list[Record]:
    if count is None:
        return records
    names = sorted({record.query.id for record in records})
    order = shuffled(torch.arange(len(names)), seed, "anchors").tolist()
    kept = {names[place] for place in order[:count]}
    return [record for record in records if record.query.id in kept]
