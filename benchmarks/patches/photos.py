"""`python -m benchmarks.patches.photos`: retrieval on captioned photos, and pointing on NYUv2.

All arms have the same frozen encoders, whose features are computed once, the same heads and the
same training; they differ in how images and texts are matched. The checkpoint is chosen on the
split val; the test split is scored once. Finished trainings are not repeated.

Settings are chosen by trials, on val and on NYUv2's training frames:

    python -m benchmarks.patches.photos benchmarks/patches/photos_trials.yaml --trial ...
"""

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from accelerate import PartialState
from pydantic import Field, model_validator

from benchmarks.patches.other_captions import (
    OtherCaptionsTask,
    one_by_one,
    score_one_by_one,
    write_joined,
)
from benchmarks.patches.photos_pointing import pointing
from benchmarks.studies import (
    ArmStudy,
    helpers,
    print_study,
    reached_or_not,
    read_finished,
    study_folder,
)
from eligo.cli import run_script
from eligo.cli.console import compact_table, print_text, results
from eligo.cli.flags import Count
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.io.files import write_text
from eligo.patches.config import KarpathyDataConfig, PatchesTrainConfig
from eligo.patches.data.cached_source import CachedSet, open_cache
from eligo.patches.data.file_source import FileSet
from eligo.patches.data.readers import read_captions
from eligo.patches.inference.evaluate import score_set
from eligo.patches.kernels.interface import Matches
from eligo.patches.metrics import AT, retrieval_metrics
from eligo.patches.model.functional import exact_top_k
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.late import LateInteraction
from eligo.patches.training.task import PatchesTask, with_counted_steps
from eligo.report.intervals import bootstrap_means
from eligo.report.provenance import provenance
from eligo.train import fit, load_weights

RESULT = "result.json"
_JOINED = "joined.jsonl"
_CONFIG = Path(__file__).with_name("photos.yaml")
_STEP = 20  # points of rsum that one caption of five can change
ArmKind = Literal["plain", "one vector", "random", "other captions"]
"""plain; one vector of each image and text, without patches; random patches are kept; an image's
other captions are its dense text."""


class PhotosConfig(Config):
    """Settings of `python -m benchmarks.patches.photos`."""

    task: Literal["patches.photos"] = "patches.photos"
    """Kind of this config."""
    base: str = "patches/photos"
    """Config that all arms start from."""
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict, min_length=1)
    """Differences from it, by dotted key."""
    kinds: dict[str, ArmKind] = Field(default_factory=dict)
    """What else is special in an arm."""
    starts: dict[str, str] = Field(default_factory=dict)
    """Arms that continue from the finished training of another one, with the same seed."""
    scored: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of an arm's matching network that change after its training."""
    ours: str
    """The arm that is compared with all others."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Every arm is trained once with each seed."""
    resamples: int = Field(default=5000, ge=10)
    """Resamples of the bootstrap."""

    @model_validator(mode="after")
    def _check(self) -> "PhotosConfig":
        for name in (*self.kinds, *self.starts, *self.starts.values(), *self.scored, self.ours):
            if name not in self.arms:
                raise ValueError(f"got {name!r}, expected one of {', '.join(self.arms)}")
        return self


class OneVector(LateInteraction):
    """Compares one vector of each image, from [CLS] and mean patch, with one of each text."""

    def match(self, images: Images, texts: Texts, *, decisions: bool = False) -> Matches:
        """Score all pairs."""
        del decisions  # no patch is kept
        scores = self.image_vectors(images) @ self.text_vectors(texts).T
        return Matches(scores, torch.ones_like(scores), None, None)


class RandomLate(LateInteraction):
    """Keeps random patches, new ones in every call."""

    def select(self, images: Images, units: Any, cosines: Any) -> Any:
        """Return random scores and the patches that they keep."""
        del images, units
        count, num_patches, num_texts, _ = cosines.shape
        score = torch.rand(count, num_texts, num_patches, device=cosines.device)
        return score, exact_top_k(score, self.num_kept(num_patches))


_NETS = {"one vector": OneVector, "random": RandomLate}


def run(
    config: Annotated[PhotosConfig, str(_CONFIG)],
    *,
    captions: Path,
    images: Path,
    vision: str = "facebook/dinov2-small",
    text: str = "sentence-transformers/all-MiniLM-L6-v2",
    rooms: Path | None = None,
    out: Path = Path("runs/patches_photos"),
    workers: Count = 1,
    trial: bool = False,
    quick: bool = False,
    json: bool = False,
) -> None:
    """Train every arm with every seed, score the test split, and compare.

    Args:
        captions: Captions in Karpathy's form.
        images: Folder of the photos.
        vision: Folder or hub name of the vision encoder.
        text: Folder or hub name of the text encoder.
        rooms: NYUv2: a folder with rgb, label (NYU40), train.txt and test.txt, for pointing.
        out: The folder to write to.
        workers: Trainings at a time, each in its own process.
        trial: Score the split val and the training frames of NYUv2 instead of those of test.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        json: Print one JSON document.
    """
    if quick:
        config = config.replace({"seeds": config.seeds[:1], "resamples": 50})
    out = study_folder(out, quick)
    given = {
        "data.captions": captions, "data.images": images, "data.cache": out / "cache",
        "model.encoders.vision": vision, "model.encoders.text": text,
    }  # fmt: skip
    write_joined(captions, out / _JOINED)
    study = PhotosStudy(config, out, quick, given, rooms, trial)
    with helpers(min(workers, len(study.missing())) - 1, study.work):
        study.work()
    found = {arm: [study.result(arm, seed) for seed in config.seeds] for arm in config.arms}
    device = PartialState().device
    summary = summarise(config, found)
    document = provenance(str(device)) | {"quick": quick, "trial": trial} | summary
    document |= {"config": config.model_dump(mode="json"), "photos": _photos(found)}
    written = write_text(out / "photos.json", json_module.dumps(document) + "\n")
    print_study(summary, _print, written, quick=quick, json=json)


@dataclass(frozen=True)
class PhotosStudy(ArmStudy):
    """All trainings of the study, in one folder."""

    config: PhotosConfig
    given: Mapping[str, Any]
    """Data and encoders, by dotted key."""
    rooms: Path | None
    trial: bool = False

    def settings(self, arm: str, seed: int) -> PatchesTrainConfig:
        """Return the config of one training."""
        config = self.config
        changes = {**self.given, **config.arms[arm], "train.seed": seed, "train.out": self.out,
                   "train.name": self.name(arm, seed)}  # fmt: skip
        if arm in config.starts:
            changes["train.init_from"] = self.out / self.name(config.starts[arm], seed) / "best"
        if config.kinds.get(arm) == "other captions":
            changes["data.dense"] = self.out / _JOINED
        settings = load_config(PatchesTrainConfig, config.base, changes)
        if self.quick:
            settings = settings.smoke().replace({"data.cache": changes["data.cache"]})
        return settings

    def result(self, arm: str, seed: int) -> Any:
        """Return the result of a training; None if there is none yet."""
        config = self.settings(arm, seed)
        recorded = _recorded(config, self.trial, self.config.scored.get(arm))
        return read_finished(config.train.folder / RESULT, recorded)

    def is_ready(self, arm: str, seed: int) -> bool:
        """Whether the arm that this one continues is trained."""
        first = self.config.starts.get(arm)
        return first is None or self.result(first, seed) is not None

    def run(self, arm: str, seed: int) -> None:
        """Train and score one arm."""
        run_arm(
            self.settings(arm, seed),
            self.config.kinds.get(arm, "plain"),
            rooms=self.rooms,
            trial=self.trial,
            scored=self.config.scored.get(arm),
        )


def _recorded(
    config: PatchesTrainConfig, trial: bool, scored: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return everything that a result depends on, except the folder, which may be moved."""
    settings = config.model_dump(mode="json", exclude={"train": {"out", "init_from"}})
    return settings | ({"trial": True} if trial else {}) | ({"scored": scored} if scored else {})


def run_arm(
    config: PatchesTrainConfig,
    kind: ArmKind = "plain",
    *,
    rooms: Path | None,
    trial: bool = False,
    scored: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train one arm and score it on test photos and frames (`trial`: of val and train).

    `scored`: attributes of the network that change after the training.
    """
    task_type = OtherCaptionsTask if kind == "other captions" else PatchesTask
    task = task_type(with_counted_steps(config))
    if kind in _NETS:
        net, match = task.model.net, config.model.match
        assert isinstance(net, LateInteraction)
        task.model.net = _NETS[kind](
            net.text_proj.in_features, match.sparse_ratio, match.typicality,
            word_weights=match.word_weights, relevance=match.relevance,
            grid_hw=net.grid_hw,
        )  # fmt: skip
    fitted = fit(task, task.config.train, resume=True)
    load_weights(fitted.chosen, {"retriever": task.model})
    model = task.model.eval()
    for name, value in (scored or {}).items():
        assert hasattr(model.net, name)
        setattr(model.net, name, value)
    scores, positive = _score_split(task, "val" if trial else "test")
    metrics = retrieval_metrics(scores, positive.to(scores.device))
    result: dict[str, Any] = {
        "config": _recorded(config, trial, scored),
        "validation": fitted.best, "test": metrics.as_dict(),
        "photos": photo_steps(scores.cpu(), positive.cpu()),
    }  # fmt: skip
    selects = kind != "one vector" and config.model.match.kind not in ("global", "filip")
    points = selects and not config.model.match.dense
    if rooms is not None and points:
        result["pointing"] = pointing(model, rooms, "train" if trial else "test")
    write_text(config.train.folder / RESULT, json_module.dumps(result) + "\n")
    return result


def _score_split(
    task: PatchesTask, split: Literal["val", "test"]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of all pairs of a split, and which of them are true."""
    model, data = task.model, task.config.data
    assert isinstance(data, KarpathyDataConfig)
    images = read_captions(data, split)
    if isinstance(task, OtherCaptionsTask):
        stored = open_cache(data, model).features(one_by_one(images), dense=True)
        return score_one_by_one(model, stored)
    test = FileSet(images, model)
    if data.cache is not None:
        test = CachedSet(open_cache(data, model).features(images, dense=False), model)
    return score_set(model, test), test.positive


def photo_steps(scores: torch.Tensor, positive: torch.Tensor) -> list[float]:
    """Return what every photo contributes to rsum (the mean of all), in steps of 20 points.

    Its hits as a query, and the mean of the hits of its captions, at 1, 5 and 10.
    """
    total = torch.zeros(len(scores))
    for k in AT:
        by_image = scores.topk(min(k, scores.shape[1]), 1).indices
        total += positive.gather(1, by_image).any(1).float()
        by_text = scores.topk(min(k, scores.shape[0]), 0).indices  # (k, texts)
        hits = positive.T.gather(1, by_text.T).any(1).float()
        total += (positive.float() @ hits) / positive.sum(1).clamp_min(1)
    return [round(value, 3) for value in (100 * total / _STEP).tolist()]


def summarise(
    config: PhotosConfig, found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return rsum, recalls and pointing of every arm, and its difference from ours."""
    ours = [run["photos"] for run in found[config.ours]]
    arms = []
    for name, runs in found.items():
        photos = [run["photos"] for run in runs]
        differences = [
            [_STEP * (a - b) for a, b in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(ours, photos, strict=True)
        ]
        total, lead = bootstrap_means(
            [[[_STEP * value for value in run] for run in photos], differences],
            resamples=config.resamples,
        )
        row = {"arm": name, "runs": len(runs), "rsum": total[0], "low": total[1], "high": total[2]}
        row |= {"ahead": lead[0], "ahead_low": lead[1], "ahead_high": lead[2]}
        row |= {key: _mean(runs, "test", key) for key in ("i2t_r1", "t2i_r1")}
        row["validation"] = _mean(runs, "validation", "rsum")
        if all("pointing" in run for run in runs):
            row |= {key: 100 * _mean(runs, "pointing", key) for key in ("kept", "hit", "chance")}
        arms.append(row)
    return {"arms": arms, "targets": _targets(config, arms)}


def _targets(config: PhotosConfig, arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    named = {row["arm"]: row for row in arms}
    targets = []

    def add(met: bool, text: str) -> None:
        targets.append({"met": met, "text": text})

    if "both" in named:
        row = named["both"]
        share = 100 * row["ahead_low"] / row["rsum"]
        text = f"not below all patches: {row['ahead']:+.1f} rsum, lower end {share:+.1f} %"
        add(share > -2, f"{config.ours}: {text} (target above -2 %)")
    for name in ("one vector", "1/4 random", "1/4 as documented"):
        if name in named:
            row = named[name]
            text = f"{row['ahead']:+.1f} ({row['ahead_low']:+.1f} to {row['ahead_high']:+.1f})"
            add(row["ahead_low"] > 0, f"{config.ours} against {name}: {text}")
    best = max((row for row in arms if "fine-tuned" not in row["arm"]), key=lambda r: r["rsum"])
    add(best["rsum"] >= 258, f"best frozen model: {best['arm']}, rsum {best['rsum']:.1f} (258)")
    for name in dict.fromkeys(("1/2 relevant", config.ours)):
        if "kept" in (row := named.get(name, {})):
            kept, times = row["kept"], row["hit"] / row["chance"]
            add(kept >= 42, f"{name}: {kept:.1f} % of the named thing's patches kept (42 %)")
            text = f"best patch on the thing {times:.2f} times as often as chance (2.2)"
            add(times >= 2.2, f"{name}: {text}")
    return targets


def _mean(runs: Sequence[Mapping[str, Any]], part: str, key: str) -> float:
    return sum(run[part][key] for run in runs) / len(runs)


def _photos(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    return {name: [run["photos"] for run in runs] for name, runs in found.items()}


def _print(summary: Mapping[str, Any]) -> None:
    table = compact_table(
        "retrieval on the test photos, and pointing on rooms",
        "ahead: rsum of our arm less this one, 95 % interval over photos and trainings · kept: "
        "share (%) of the named thing's patches among a quarter of all · hit: best patch on it (%)",
        ("arm",),
        ["rsum", "i2t R@1", "t2i R@1", "ahead", "interval", "kept", "hit"],
    )
    for row in summary["arms"]:
        table.add_row(
            row["arm"],
            *(f"{row[key]:.1f}" for key in ("rsum", "i2t_r1", "t2i_r1", "ahead")),
            f"{row['ahead_low']:+.1f} to {row['ahead_high']:+.1f}",
            *(f"{row[key]:.1f}" if key in row else "-" for key in ("kept", "hit")),
        )
    results().print(table)
    for target in summary["targets"]:
        print_text(f"{reached_or_not(target['met'])}: {target['text']}")


if __name__ == "__main__":
    raise SystemExit(run_script(run))
