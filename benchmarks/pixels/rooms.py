"""`python -m benchmarks.pixels.rooms`: segmentation of real rooms (NYUv2), with and without words.

Official split, frames of 240 x 320 pixels, from scratch. Blocks of successive frames of `train`
choose the checkpoint; `test` is scored once. All arms have the same training; they differ in what
the network sees and in its words. Published figures count 40 classes and start from pretrained
weights; here 39 classes are scored. Finished trainings are not repeated.
"""

import json as json_module
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from pydantic import Field, model_validator
from torch import Tensor

from benchmarks.pixels.rooms_data import CLASSES, Tags, data_changes, prepare, tagged_classes
from benchmarks.pixels.rooms_summary import ONLY, print_summary, summarise
from benchmarks.studies import ArmStudy, helpers, print_study, read_finished, study_folder
from eligo.cli import run_script
from eligo.cli.flags import Count
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.io.files import remove_folder, write_text, writing
from eligo.pixels import PixelsModel, PixelsTrainConfig
from eligo.pixels.config import IGNORED, PRESETS, SIZES, PixelsConfig
from eligo.pixels.data.batch import Batch
from eligo.pixels.data.file_source import FileSource, Images
from eligo.pixels.data.records import Split
from eligo.pixels.inference.segmenter import text_encoder
from eligo.pixels.text.batch import Provenance
from eligo.pixels.training.task import PixelsTask
from eligo.report.provenance import made_on, provenance
from eligo.train import fit, load_weights
from eligo.train.processes import Processes

RESULT, COUNTS = "result.json", "counts.npz"
_CONFIG = Path(__file__).with_name("rooms.yaml")
_EVALUATED = 64  # frames at a time
Size = Literal["small", "S"]
Sees = Literal["rgb", "depth", "both"]
Words = Literal["none", "labels", "true", "tagger", "other"]
_TESTED = {"labels": "class names"}


class ArmConfig(Config):
    """One arm."""

    sees: Sees = "both"
    """Colours, depth, or both."""
    words: Words
    """Words in training: none, all class names, or tags: the labels', the tagger's, or those of
    another frame."""
    against: str | None = None
    """The arm that it is compared with."""
    size: Size = "small"
    """Size of the network."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Other changes of the base config, by dotted key."""


class RoomsConfig(Config):
    """Settings of `python -m benchmarks.pixels.rooms`."""

    task: Literal["pixels.rooms"] = "pixels.rooms"
    """Kind of this config."""
    base: str = "pixels/rooms"
    """Config that all arms start from."""
    arms: dict[str, ArmConfig] = Field(default_factory=dict, min_length=1)
    """Every arm by name."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Changes of the base config for all arms, by dotted key."""
    only: tuple[str, ...] = ()
    """Names of the arms to train; none: all."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every arm is trained once with each seed."""
    steps: dict[Size, int]
    """Steps of a training, by size of the network."""
    lr: dict[Size, float]
    """Learning rate, by size of the network."""
    depth_scale: float = Field(default=25.5, gt=0)
    """Stored units of depth per metre; 25.5: ten metres in 8 bits."""
    resamples: int = Field(default=2000, ge=10)
    """Resamples of the bootstrap."""

    @model_validator(mode="after")
    def _check(self) -> "RoomsConfig":
        for name in (*self.only, *(arm.against for arm in self.arms.values())):
            if name is not None and name not in self.arms:
                raise ValueError(f"got {name!r}, expected one of {', '.join(self.arms)}")
        return self


def run(
    config: Annotated[RoomsConfig, str(_CONFIG)],
    *,
    rooms: Path,
    vision: str = "facebook/dinov2-small",
    text: str = "sentence-transformers/all-MiniLM-L6-v2",
    out: Path = Path("runs/pixels_rooms"),
    workers: Count = 1,
    quick: bool = False,
    json: bool = False,
) -> None:
    """Train every arm with every seed, score the test split, and compare.

    Args:
        rooms: NYUv2: a folder with rgb, depth, label (NYU40), train.txt and test.txt.
        vision: Folder or hub name of the tagger's vision encoder.
        text: Folder or hub name of the text encoder.
        out: The folder to write to.
        workers: Trainings at a time, each in its own process.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        json: Print one JSON document.
    """
    if quick:
        config = config.replace({"seeds": config.seeds[:1], "resamples": 50})
    out = study_folder(out, quick)
    device = Processes().device
    made = prepare(rooms, out / "data", vision, text, device)
    study = RoomsStudy(config, out, quick, made["text_dim"])
    with helpers(min(workers, len(study.missing())) - 1, study.work):
        study.work()
    found = {arm: [study.counts(arm, seed) for seed in config.seeds] for arm in study.arms}
    results = [study.result(arm, seed) for arm in study.arms for seed in config.seeds]
    own = {name: _TESTED.get(arm.words, arm.words) for name, arm in study.arms.items()}
    against = {name: arm.against for name, arm in study.arms.items() if arm.against}
    summary = {"tagger": made["tagger"], **summarise(found, own, against, config.resamples)}
    document = provenance(str(device)) | {
        "quick": quick, "made_on": made_on(results), "config": config.model_dump(mode="json"),
        "seconds": sum(result["seconds"] for result in results), **summary,
    }  # fmt: skip
    written = write_text(out / "rooms.json", json_module.dumps(document, indent=1) + "\n")
    print_study(summary, print_summary, written, quick=quick, json=json)


@dataclass(frozen=True)
class RoomsStudy(ArmStudy):
    """All trainings of the study, in one folder."""

    config: RoomsConfig
    text_dim: int

    @property
    def arms(self) -> dict[str, ArmConfig]:
        """The arms to train, by name."""
        return {n: arm for n, arm in self.config.arms.items() if n in (self.config.only or (n,))}

    def settings(self, name: str, seed: int) -> PixelsTrainConfig:
        """Return the config of one training."""
        arm = self.config.arms[name]
        steps = 2 if self.quick else self.config.steps[arm.size]
        data = self.out / "data"
        changes: dict[str, Any] = {
            **_size_changes(arm.size), "optimizer.lr": self.config.lr[arm.size],
            **data_changes(data, None if arm.words in ("none", "labels") else arm.words),
            "text_dim": self.text_dim, "text.encoder.file": data / "words.safetensors",
            "inputs.depth_scale": self.config.depth_scale, "data.num_workers": 0,
            "data.validation_share": 0.15, "data.validation_block": 10,
            "train.total_steps": steps, "train.evaluate_every": max(1, steps // 6),
            "train.checkpoint_every": steps, "train.keep_checkpoints": 1,
            "train.check_data": False,
            "train.precision": "bf16" if torch.cuda.is_available() else "no",
            "train.seed": seed, "train.out": self.out, "train.name": self.name(name, seed),
        }  # fmt: skip
        if arm.sees == "rgb":
            changes |= {"inputs.depth": "none", "encoder.depth_stem": False}
        if arm.words == "none":
            changes |= PRESETS[0] | {"text.source": "none"}
        if arm.words == "labels":
            changes["text.source"] = "labels"
        if arm.words == "true":
            changes["train.monitor"] = "miou/oracle"
        changes |= self.config.changes | arm.changes
        settings = load_config(PixelsTrainConfig, self.config.base, changes)
        return settings.replace({"train.batch_size": 2}) if self.quick else settings

    @property
    def runs(self) -> list[tuple[str, int]]:
        """The trainings in their order: arm by arm, large networks first."""
        by_size = sorted(self.arms, key=lambda name: self.arms[name].size == "small")
        return [(name, seed) for name in by_size for seed in self.config.seeds]

    def result(self, arm: str, seed: int) -> Any:
        """Return the result of a training; None if there is none yet."""
        config = self.settings(arm, seed)
        return read_finished(config.train.folder / RESULT, _recorded(config))

    def counts(self, arm: str, seed: int) -> dict[str, np.ndarray]:
        """Return the counts of every test frame, by the words of the test."""
        with np.load(self.settings(arm, seed).train.folder / COUNTS) as stored:
            return dict(stored)

    def run(self, arm: str, seed: int) -> None:
        """Train one arm, and score it."""
        run_arm(self.settings(arm, seed), self.config.arms[arm], self.out / "data")


def _size_changes(size: Size) -> dict[str, Any]:
    default = PixelsConfig().model_dump()
    of_s = {key: default[part][name] for key in SIZES["small"] for part, name in [key.split(".")]}
    return of_s | SIZES[size]


def _recorded(config: PixelsTrainConfig) -> dict[str, Any]:
    """Return what a result depends on, except folders, which may be moved, and the hardware."""
    files = {"train", "test", "classes", "words"}
    excluded = {"train": {"out", "precision"}, "data": files, "text": {"encoder": {"file"}}}
    return config.model_dump(mode="json", exclude=excluded)


_frames: dict[tuple[Split, str, torch.device], list[Tensor]] = {}
"""Decoded frames, shared by all trainings of this process."""


class RoomsSource(FileSource):
    """The frames of an arm."""

    hides_colours = False

    def decoded(self, split: Split) -> list[Tensor]:
        """Return the frames of a split, decoded once in a process."""
        key = (split, self.inputs.depth, self.device)
        if key not in _frames:
            _frames[key] = super().decoded(split)
        return _frames[key]

    def ids(self, split: Split) -> list[str]:
        """Return the ids of the frames of a split, in the order of `images`."""
        return [record.id for record in self._images(split).records]

    def _batch(self, images: Images, parts: list[Tensor], provenance: Provenance) -> Batch:
        batch = super()._batch(images, parts, provenance)
        if self.hides_colours:
            batch.rgb.zero_()
        return batch


def open_rooms(config: PixelsTrainConfig, arm: ArmConfig, device: torch.device) -> RoomsSource:
    """Return the frames of an arm, with the words of its config."""
    encoder = text_encoder(config)
    assert config.data.kind == "jsonl"
    source = RoomsSource(config.data, config.inputs, config.text, encoder, config.augment, device)
    source.hides_colours = arm.sees == "depth"
    return source


def run_arm(config: PixelsTrainConfig, arm: ArmConfig, data: Path) -> None:
    """Train one arm, and score it on the test frames with each kind of words."""
    device, start = Processes().device, perf_counter()
    source = open_rooms(config, arm, device)
    task = PixelsTask(config, source)
    fitted = fit(task, task.config.train, resume=True)
    load_weights(fitted.chosen, {"model": task.model})
    model = task.model.eval()
    counts = {"none": frame_counts(model, source, "none")}
    kinds: tuple[Tags, ...] = ("true", "tagger", "other")
    if arm.words == "labels":
        counts[_TESTED["labels"]] = frame_counts(model, source, "predicted")
    elif arm.words == "none":  # the simple use of tags: only their classes may be predicted
        ids = source.ids("test")
        for kind in kinds:
            allowed = tagged_classes(data, kind, ids).to(device)
            counts[ONLY + kind] = frame_counts(model, source, "none", allowed)
    else:
        for kind in kinds:
            other = open_rooms(config.replace(data_changes(data, kind)), arm, device)
            counts[kind] = frame_counts(model, other, "predicted")
    folder = config.train.folder
    arrays: dict[str, Any] = {name: part.numpy() for name, part in counts.items()}
    with writing(folder / COUNTS) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    result = {
        "config": _recorded(config), "made": provenance(str(device)),
        "validation": fitted.best, "best_step": fitted.best_step,
        "seconds": perf_counter() - start,
        "parameters": sum(part.numel() for part in model.parameters()),
    }  # fmt: skip
    write_text(folder / RESULT, json_module.dumps(result) + "\n")
    for name in ("checkpoints", "best", "last"):  # of all runs together, too large to keep
        remove_folder(folder / name)


@torch.no_grad()
def frame_counts(
    model: PixelsModel,
    source: RoomsSource,
    words: Provenance,
    allowed: Bool[Tensor, "frames classes"] | None = None,
) -> Int[Tensor, "frames 3 classes"]:
    """Return the right, the labelled and the predicted pixels of every class in each test frame.

    `allowed`: the classes that may be predicted in each frame.
    """
    found, done = [], 0
    for batch in source.images("test", words, _EVALUATED):
        logits = model(batch.rgb, batch.depth, batch.depth_mask, batch.text, maps=False).logits
        if allowed is not None:
            here = allowed[done : done + len(logits), :, None, None]
            logits = logits.masked_fill(~here, -torch.inf)
        done += len(logits)
        labels, counted = batch.labels.long(), batch.labels != IGNORED
        predicted = logits.argmax(1)
        right = _by_class(labels, counted & (predicted == labels))
        found.append(
            torch.stack((right, _by_class(labels, counted), _by_class(predicted, counted)), 1)
        )
    return torch.cat(found).cpu()


def _by_class(
    classes: Int[Tensor, "frames height width"], counted: Bool[Tensor, "frames height width"]
) -> Int[Tensor, "frames classes"]:
    """Count the pixels of every class in each frame."""
    flat = torch.where(counted, classes, len(CLASSES)).flatten(1)
    counts = torch.zeros(len(flat), len(CLASSES) + 1, dtype=torch.int32, device=flat.device)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.int32))
    return counts[:, : len(CLASSES)]


if __name__ == "__main__":
    raise SystemExit(run_script(run))
