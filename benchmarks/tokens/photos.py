"""`python -m benchmarks.tokens.photos`: learned and training-free pruning on photos.

The host is a vision-language model that `eligo tokens finetune` made; plans are trained in it with
the config of `eligo tokens train photos`. Every method, learned or not, gets a few trials on the
validation split at the middle cost. Then all answer the questions of the test split once, at equal
cost. Results of every step are kept in the output folder, and all plans in its folder `plans`; a
second run computes only what is missing.
"""

import hashlib
import json as json_module
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import torch
from accelerate import PartialState
from pydantic import Field, model_validator

from benchmarks.studies import print_study, reached_or_not, step_bars, study_folder
from benchmarks.tokens.config import BASELINES
from benchmarks.tokens.photo_answers import NEW_TOKENS, PhotoAnswers, load_photo_host
from benchmarks.tokens.photos_summary import MEAN, PhotoResults, summarise
from benchmarks.tokens.study import train_all, weights_digest
from eligo.cli import run_script
from eligo.cli.console import compact_table, print_result, print_text, results
from eligo.cli.flags import Count
from eligo.config import Config, load_config
from eligo.config.bounds import Seed
from eligo.errors import InputError
from eligo.io.files import kept_json, write_text
from eligo.report.provenance import provenance
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.prompts import text_lengths
from eligo.tokens.inference.controls import answer_controls
from eligo.tokens.inference.equal_cost import Matched, candidates, match, scale_to, spending
from eligo.tokens.inference.evaluate import WHOLE
from eligo.tokens.methods import build
from eligo.tokens.metrics import as_bits
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.vqa import VqaExample, read_vqa_lines

logger = logging.getLogger("eligo.tokens")

Report = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and its total."""
_CONFIG = Path(__file__).with_name("photos.yaml")


class PhotosConfig(Config):
    """Settings of `python -m benchmarks.tokens.photos`."""

    task: Literal["tokens.photos"] = "tokens.photos"
    """Kind of this config."""
    base: str = "tokens/photos"
    """Config that all trainings start from."""
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Plans to train: differences from `base`, by dotted key."""
    trials: tuple[dict[str, Any], ...] = Field(default=({},), min_length=1)
    """Settings to try for every arm, with the first seed."""
    seeds: tuple[Seed, ...] = Field(default=(0, 1, 2), min_length=1)
    """Trainings with the chosen setting."""
    points: tuple[int, ...] = (64, 32, 16)
    """Costs to compare at, as numbers of tokens that enter the language model."""
    middle: int = 32
    """The point at which settings are chosen."""
    baselines: tuple[str, ...] = tuple(name for name in BASELINES if name != "oracle")
    """Training-free methods."""
    composed: tuple[str, ...] = ()
    """Two training-free methods, BEFORE+INSIDE, in the schedule of the first arm."""
    num_trials: int = Field(default=4, ge=1, le=4)
    """Settings to try for every baseline (or all that it has)."""
    num_questions: int | None = Field(default=None, ge=1)
    """Maximum number of questions of a split; none: all."""
    num_tuning: int | None = Field(default=None, ge=1)
    """Maximum number of validation questions that settings are chosen on; none: all."""
    batch_size: int = Field(default=400, ge=1)
    """Prompts in one call of `generate`."""
    resamples: int = Field(default=5000, ge=10)
    """Resamples of the bootstrap."""

    @model_validator(mode="after")
    def _check(self) -> "PhotosConfig":
        if self.middle not in self.points:
            raise ValueError(f"middle: got {self.middle}, expected one of {list(self.points)}")
        return self


def run(
    config: Annotated[PhotosConfig, str(_CONFIG)],
    *,
    host: Path,
    questions: Path,
    images: Path,
    other_host: Path | None = None,
    out: Path = Path("runs/tokens_photos"),
    workers: Count = 1,
    trial: bool = False,
    quick: bool = False,
    json: bool = False,
) -> None:
    """Train the plans, choose settings, answer the test questions with all, and summarise.

    Writes photos.json: variants, comparisons, targets, and which answers were right.

    Args:
        host: Folder of the model that the plans are trained in.
        questions: JSON lines with image, question, answer, family and split.
        images: Folder of the images.
        other_host: The same model, trained with another seed: plans are tested in it, too.
        out: The folder to write to.
        workers: Trainings at a time, each in its own process.
        trial: Print what the settings reach on the validation split, and stop.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        json: Print one JSON document.
    """
    if quick:
        config = config.replace({"num_trials": 2, "seeds": [0], "resamples": 50,
                                 "num_questions": 24, "batch_size": 24})  # fmt: skip
    out = study_folder(out, quick)
    study = PhotosStudy(config, host, questions, images, out, workers=workers, quick=quick)
    if trial:
        _, tuning = study.choose(step_bars())
        print_result(tuning["trials"], json=json)
        return
    outcome = study.run(other_host, step_bars())
    fields = ("families", "photos", "right", "cost", "allowed", "exceeding")
    answers = PhotoResults(**{k: outcome[k] for k in fields}, resamples=config.resamples)
    summary = summarise(answers)
    document = answers.document(outcome, config, summary, quick=quick)
    written = write_text(out / "photos.json", json_module.dumps(document) + "\n")
    print_study(summary, _print, written, quick=quick, json=json)


def _print(summary: Mapping[str, Any]) -> None:
    names = [name for name in summary["variants"][0]["accuracy"] if name != MEAN]
    table = compact_table(
        "right answers (%) on the same test questions",
        "lost: points against none, mean over families, with 95 % interval over photos · saved: "
        "FLOPs (%) of the language model, the selector counted · *: cannot cost so little",
        ("variant",),
        [*names, MEAN, "lost", "interval", "saved"],
    )
    for row in summary["variants"]:
        accuracy, saved = row["accuracy"], row.get("flops_reduction_with_selector")
        table.add_row(
            row["variant"] + ("*" if row["exceeds"] else ""),
            *(f"{accuracy[name]:.1f}" for name in [*names, MEAN]),
            f"{row['lost']:.1f}",
            f"{row['low']:.1f} to {row['high']:.1f}",
            "-" if saved is None else f"{100 * saved:.0f}",
        )
    results().print(table)
    for target in summary["targets"]:
        print_text(f"{reached_or_not(target['met'])}: {target['text']}")


class PhotosStudy:
    """All steps of the study, in one folder."""

    def __init__(
        self,
        config: PhotosConfig,
        host: Path,
        questions: Path,
        images: Path,
        out: Path,
        *,
        workers: int = 1,
        quick: bool = False,
    ) -> None:
        if not config.arms:
            raise InputError("the study has no arms; expected some, as in photos.yaml")
        self.config, self.out, self.workers, self.quick = config, out, workers, quick
        self.host, self.questions, self.images = host, questions, images
        self.exceeding: list[str] = []
        """Baselines whose cheapest setting costs more than the point."""

    # -------------------------------------------------------------- trainings

    def training(self, arm: str, trial: int, seed: int) -> TokensTrainConfig:
        """Return the config of one training."""
        name = f"{arm}_{trial}_{seed}"
        given = {
            "host.model": str(self.host), "data.images": self.images,
            "data.train_lines": self.questions, "data.validation_lines": self.questions,
            "data.num_workers": 2,  # trainings at a time share the cores
            "train.name": name, "train.seed": seed, "train.out": self.out,
            "train.check_data": (arm, trial, seed) == self.trials[0],  # all have the same files
        }  # fmt: skip
        changes = {**self.config.arms[arm], **self.config.trials[trial]}
        # A trial may change a part that the arm does not have.
        missing = [part for part in ("merger", "pruners") if changes.get(part, 0) is None]
        changes = {
            k: v for k, v in changes.items() if not any(f".{p}." in f".{k}" for p in missing)
        }
        config = load_config(TokensTrainConfig, self.config.base, {**changes, **given})
        return config.smoke() if self.quick else config

    @property
    def trials(self) -> list[tuple[str, int, int]]:
        """Arm, trial and seed of the trainings that settings are chosen from."""
        count, first = len(self.config.trials), self.config.seeds[0]
        return [(arm, trial, first) for arm in self.config.arms for trial in range(count)]

    def train(self, runs: Sequence[tuple[str, int, int]], report: Report) -> None:
        """Run the missing trainings of an arm, trial and seed each."""
        train_all([self.training(*run) for run in runs], self.workers, report)

    # -------------------------------------------------------------- questions

    def run(self, other_host: Path | None, report: Report) -> dict[str, Any]:
        """Run the missing steps; return which answers were right, and the costs."""
        key, tuning = self.choose(report)
        chosen = [
            (arm, tuning["chosen"][arm], seed)
            for arm in self.config.arms
            for seed in self.config.seeds
        ]
        self.train(chosen, report)
        key |= {"chosen": {f"{a}_{t}_{s}": self._digest(a, t, s) for a, t, s in chosen}}
        plans = self._plans(tuning["chosen"], chosen)
        tested = kept_json(self.out / "answers.json", key, lambda: self._test(plans, key, report))
        if other_host is not None:
            self._load(other_host)
            learned = {WHOLE: Plan()} | {n: p for n, p in plans.items() if "#" in n}
            key |= {"other": str(other_host)}
            other = kept_json(
                self.out / "other.json", key,
                lambda: self._answers("test", learned, "other host", key, report)[0],
            )  # fmt: skip
            tested["right"] |= {f"other host, {name}": bits for name, bits in other.items()}
        return {"tuning": tuning, **tested}

    def choose(self, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
        """Train all settings once; return what they depend on, and the best of each arm."""
        device = PartialState().device
        assert device is not None
        self.device = device
        self.train(self.trials, report)
        self._load(self.host)
        shared = self.config.model_dump(mode="json", exclude={"seeds", "resamples"})
        digests = {f"{a}_{t}_{s}": self._digest(a, t, s) for a, t, s in self.trials}
        key = shared | {"trainings": digests}
        return key, kept_json(self.out / "tuning.json", key, lambda: self._tune(key, report))

    def _load(self, folder: Path) -> None:
        self.loaded = folder
        self.dtype: Literal["float32", "bfloat16"] = "float32" if self.quick else "bfloat16"
        self.model, self.processor = load_photo_host(folder, self.dtype, str(self.device))
        self.shape = HostShape.of(self.model)
        asked = [row.question for row in self._rows("val")]
        self.text = int(median(text_lengths(self.processor, asked)))

    def _rows(self, split: str) -> list[VqaExample]:
        rows = read_vqa_lines(self.questions, self.images, split=split)
        tuning = self.config.num_tuning if split == "val" else None
        return rows[: self.config.num_questions][:tuning]

    def _digest(self, arm: str, trial: int, seed: int) -> str:
        return weights_digest(self.out / f"{arm}_{trial}_{seed}")

    def allowed(self, point: int) -> float:
        """Return the FLOPs of a point."""
        return spending(self.shape, Plan(Stage1(build("random"), point)), self.text)

    def _candidates(self, name: str) -> list[Matched]:
        """Return the settings of a baseline at the middle cost, up to one token."""
        middle = self.config.middle
        allowed, one_more = self.allowed(middle), self.allowed(middle + 1)
        limits = allowed, self.config.num_trials, one_more / allowed - 1
        return candidates(name, self.shape, self.text, *limits)

    def _composed(self, name: str, point: int) -> Plan:
        """Return two methods with the budgets of the first arm, at the cost of a point."""
        before, _, inside = name.partition("+")
        config = self.training(next(iter(self.config.arms)), 0, self.config.seeds[0])
        assert self.shape.vision is not None
        schedule = config.schedule(self.shape.vision, self.shape.num_layers, self.text)
        cuts = [Cut(layer, build(inside), kept) for layer, kept in schedule.cuts]
        plan = Plan(Stage1(build(before), schedule.merged), cuts)
        return scale_to(plan, self.shape, self.text, self.allowed(point))

    def _learned(self, arm: str, trial: int, seed: int, point: int) -> Plan:
        name = f"{arm}_{trial}_{seed}"
        small = self.out / "plans" / name  # the form to keep: half precision, no checkpoints
        Plan.load(self.out / name).save(small, dtype=torch.float16)
        plan = Plan.load(small)
        return scale_to(plan, self.shape, self.text, self.allowed(point))

    def _tune(self, key: Any, report: Report) -> dict[str, Any]:
        """Choose the best setting of every method on the validation split."""
        trials: dict[tuple[str, int], tuple[str, Plan]] = {}
        for name in self.config.baselines:
            for number, one in enumerate(self._candidates(name)):
                trials[name, number] = (one.arrangement.name, one.plan)
        for arm, trial, seed in self.trials:
            plan = self._learned(arm, trial, seed, self.config.middle)
            trials[arm, trial] = (str(self.config.trials[trial]), plan)
        plans = {f"{name}_{number}": plan for (name, number), (_, plan) in trials.items()}
        right, _ = self._answers("val", plans, "tuning", key, report)
        measured = PhotoResults([row.kind for row in self._rows("val")], right, {}, {})
        by_method: dict[str, list[float]] = {}
        rows = []
        for (name, number), (setting, _) in trials.items():
            accuracy = measured.accuracies(f"{name}_{number}")[MEAN]
            rows.append({"method": name, "setting": setting, "accuracy": accuracy})
            by_method.setdefault(name, []).append(accuracy)
        chosen = {name: values.index(max(values)) for name, values in by_method.items()}
        return {"trials": rows, "chosen": chosen}

    def _plans(
        self, chosen: Mapping[str, int], trained: Sequence[tuple[str, int, int]]
    ) -> dict[str, Plan]:
        """Return all plans that answer the test questions, by `VARIANT@POINT` or with `#SEED`."""
        plans: dict[str, Plan] = {WHOLE: Plan()}
        self.exceeding = []
        for point in self.config.points:
            for name in self.config.baselines:
                arrangement = self._candidates(name)[chosen[name]].arrangement
                matched = match(arrangement, self.shape, self.text, self.allowed(point))
                plans[f"{name}@{point}"] = matched.plan
                if matched.spent > self.allowed(point + 1) / self.allowed(point):
                    self.exceeding.append(f"{name}@{point}")
            for name in self.config.composed:
                plans[f"{name}@{point}"] = self._composed(name, point)
            for arm, trial, seed in trained:
                plans[f"{arm}@{point}#{seed}"] = self._learned(arm, trial, seed, point)
        return plans

    def _test(self, plans: dict[str, Plan], key: Any, report: Report) -> dict[str, Any]:
        rows = self._rows("test")
        right, cost = self._answers("test", plans, "questions", key, report)
        train = read_vqa_lines(self.questions, self.images, split="train", need_images=False)
        controls = answer_controls(
            self.model, self.processor, rows, train,
            batch_size=self.config.batch_size, max_new_tokens=NEW_TOKENS,
            on_progress=lambda done: report("controls", done, 2 * len(rows)),
        )  # fmt: skip
        number = {image: n for n, image in enumerate(dict.fromkeys(row.image for row in rows))}
        right |= {name: as_bits([x > 0.5 for x in hit]) for name, hit in controls.items()}
        return {
            "measured": provenance(str(self.device)),
            "families": [row.kind for row in rows],
            "photos": [number[row.image] for row in rows],
            "right": right,
            "cost": cost,
            "exceeding": self.exceeding,
            "allowed": {str(point): self.allowed(point) for point in self.config.points},
        }

    def _answers(
        self, split: str, plans: Mapping[str, Plan], step: str, key: Any, report: Report
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Return right answers as bits, and costs, by plan; `key` is all that they depend on."""
        digest = hashlib.sha256(json_module.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
        asked = PhotoAnswers(
            self.loaded, self.dtype, str(self.device), self._rows(split), plans,
            self.config.batch_size, self.out / "answers" / f"{split}_{digest}",
        )  # fmt: skip
        return asked.run(self.workers, lambda done, total: report(step, done, total))


if __name__ == "__main__":
    raise SystemExit(run_script(run))
