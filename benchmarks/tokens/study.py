"""`python -m benchmarks.tokens.study`: learned two-stage pruning against training-free methods.

Plans are trained on the training split, with checkpoints chosen on the validation split. Baselines
are tuned on the validation split, with equally many trials each (or all settings that they have).
Then all answer the same questions of the test split once, at equal cost. Results of every step are
kept in the output folder, and a second run computes only what is missing.
"""

import hashlib
import json as json_module
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from accelerate import PartialState

from benchmarks.studies import (
    helpers,
    print_study,
    reached_or_not,
    read_finished,
    run_once,
    step_bars,
    study_folder,
    work_through,
)
from benchmarks.tokens.config import TWO_STAGE, StudyConfig
from benchmarks.tokens.earlier import Earlier
from benchmarks.tokens.pictures import plot_study
from benchmarks.tokens.summary import Results, summarise
from eligo.cli import run_script
from eligo.cli.console import compact_table, print_text, results
from eligo.errors import InputError, MissingExtraError
from eligo.io.files import kept_json, write_text
from eligo.report.provenance import provenance
from eligo.tokens.config import ScenesDataConfig, TokensTrainConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import SceneExamples
from eligo.tokens.data.scene_source import SceneSource
from eligo.tokens.inference.equal_cost import CLOSE, Matched, candidates, spending, tune
from eligo.tokens.inference.evaluate import (
    BLIND,
    WHOLE,
    Answers,
    answer_blindly,
    answer_questions,
)
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import build
from eligo.tokens.metrics import as_bits
from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners
from eligo.tokens.model.token_merger import TokenMerger
from eligo.tokens.plan import Plan, Stage1
from eligo.tokens.training.task import TokensTask
from eligo.train import fit
from eligo.train.rng import mix

logger = logging.getLogger("eligo.tokens")

Report = Callable[[str, int, int], None]
"""Called with the name of a step, how much of it is done, and its total."""
_CONFIG = Path(__file__).with_name("study.yaml")
_ANSWERS, _TUNING, _TRAINED = "answers.json", "tuning.json", "trained.json"


def run(
    config: Annotated[StudyConfig, str(_CONFIG)],
    *,
    out: Path = Path("runs/tokens_study"),
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    earlier: Path | None = None,
    quick: bool = False,
    json: bool = False,
) -> None:
    """Train the plans, tune the baselines, answer the test questions with both, and summarise.

    A second run computes only what is missing. Writes study.json (variants, comparisons, targets,
    and which answers were right, question by question) and a plot.

    Args:
        out: The folder to write to.
        only: Train these (NAME_SEED) and stop, so that several processes can share the work.
        skip: Leave these trainings (NAME) out.
        earlier: A study.json, from which trainings and baselines with the same settings are taken.
        quick: A quick test on a CPU, in a folder `quick` inside; its numbers are meaningless.
        json: Print one JSON document.
    """
    config, out = config.quick() if quick else config, study_folder(out, quick)
    config = config.without(skip)
    device = PartialState().device  # where the training loop runs
    assert device is not None
    study = Study(config, out, device, earlier and Earlier.read(earlier, config))
    if only:
        study.train(only=only)
        print_text(f"trained: {', '.join(only)}")
        return
    outcome = study.run(step_bars())
    names = ("families", "right", "cost", "allowed")
    answers = Results(**{name: outcome[name] for name in names}, resamples=config.resamples)
    summary = summarise(answers)
    document = answers.document(outcome, config, summary, quick=quick)
    written = write_text(out / "study.json", json_module.dumps(document) + "\n")
    try:
        plot_study(summary, out / "lost.png")
    except MissingExtraError as error:
        logger.info("no plot: %s", error)
    print_study(summary, _print, written, quick=quick, json=json)


def _print(summary: Mapping[str, Any]) -> None:
    overall = compact_table(
        "right answers (%) on the same test questions",
        "lost: points against none, with 95 % interval · saved: FLOPs (%) of the language model, "
        "the selector counted · runs: trainings",
        ("variant",),
        ["kept", "saved", "runs", "right", "lost", "interval"],
    )
    names = list(summary["variants"][0]["accuracy"])
    families = compact_table("by family (%)", "", ("variant",), names)
    for row in summary["variants"]:
        accuracy, saved = row["accuracy"], row.get("flops_reduction_with_selector")
        overall.add_row(
            row["variant"],
            ">".join(map(str, row.get("kept", [0]))),
            "-" if saved is None else f"{100 * saved:.1f}",
            str(row["runs"]),
            f"{accuracy['all']:.1f}",
            f"{row['drop']:.1f}",
            f"{row['drop_low']:.1f} to {row['drop_high']:.1f}",
        )
        families.add_row(row["variant"], *(f"{accuracy[name]:.1f}" for name in names))
    for table in (overall, families):
        results().print(table)
    for target in summary["targets"]:
        print_text(f"{reached_or_not(target['met'])}: {target['text']}")
    for finding in summary["findings"]:
        holds = "confirmed" if finding["holds"] else "not confirmed"
        print_text(f"{holds}: {finding['claim']} ({finding['text']})")


class Study:
    """All steps of the study, in one folder."""

    def __init__(
        self,
        config: StudyConfig,
        out: Path,
        device: torch.device,
        earlier: Earlier | None = None,
    ) -> None:
        if not config.trainings:
            raise InputError("the study has no trainings; expected some, as in study.yaml")
        self.config, self.out, self.device, self.earlier = config, out, device, earlier
        first = config.run(next(iter(config.trainings)), 0)
        if not isinstance(first.data, ScenesDataConfig):
            raise InputError("the study needs generated scenes; expected data.kind: scenes")
        self.host, self.scenes = first.host, first.data.scenes

    def run(self, report: Report = lambda *_: None) -> dict[str, Any]:
        """Run the missing steps; return which answers were right, and the costs."""
        self.train(report)
        self.model, self.processor = load_host(self.host, device=str(self.device))
        self.shape = HostShape.of(self.model)
        self.text = SceneSource(ScenesDataConfig(scenes=self.scenes), 1).num_text
        used = {"points", "baselines", "trials", "tuning_questions", "base", "tiny"}
        key = self.config.model_dump(mode="json", include=used)
        before = self._tuned_before()
        if self.earlier is not None:
            key["earlier"] = [f"{entry['baseline']}@{entry['point']}" for entry in before]
        tuned = kept_json(self.out / _TUNING, key, lambda: self._tune(before, report))
        plans = self._plans(tuned)
        test = self.config.model_dump(mode="json", include={"questions", "blind_scenes"})
        key |= test | {"parts": self._digests()}
        answers = kept_json(self.out / _ANSWERS, key, lambda: self._test(plans, report))
        if self.earlier is not None:
            answers = self.earlier.extended(answers, before)
        return {"tuning": [*before, *tuned], **answers}

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of every training whose answers are not known."""
        return [
            (name, seed)
            for name, training in self.config.trainings.items()
            if self.earlier is None or not self.earlier.has_training(name)
            for seed in training.seeds
        ]

    def train(self, report: Report = lambda *_: None, only: Sequence[str] = ()) -> None:
        """Run every training that is missing; an interrupted one continues.

        `only`: names of runs, `NAME_SEED`, so that several processes can share the work.
        """
        runs = {f"{name}_{seed}": (name, seed) for name, seed in self.runs}
        if unknown := [name for name in only if name not in runs]:
            raise InputError(f"got {unknown[0]!r}, expected one of {', '.join(runs)}")
        selected = [run for name, run in runs.items() if name in (only or runs)]
        configs = [self.config.run(*run).replace({"train.out": self.out}) for run in selected]
        train_all(configs, report=report)

    def _digests(self) -> dict[str, str]:
        """Return a hash of the weights of every training."""
        names = [f"{name}_{seed}" for name, seed in self.runs]
        return {name: weights_digest(self.out / name) for name in names}

    def allowed(self, point: str) -> float:
        """Return the FLOPs of a point."""
        plan = Plan(Stage1(build("random"), self.config.points[point]))
        return spending(self.shape, plan, self.text)

    def _candidates(self, name: str, point: str) -> list[Matched]:
        allowed, trials = self.allowed(point), self.config.trials
        return candidates(name, self.shape, self.text, allowed, trials)

    def _tuned_before(self) -> list[dict[str, Any]]:
        """Return the tunings of the earlier study that still hold."""
        if self.earlier is None:
            return []
        found = [
            self.earlier.tuning(name, point, self._candidates(name, point))
            for point in self.config.points
            for name in self.config.baselines
        ]
        return [entry for entry in found if entry is not None]

    def _tune(self, before: Sequence[Mapping[str, Any]], report: Report) -> list[dict[str, Any]]:
        """Choose the best setting of every other baseline at every point, on validation scenes."""
        done = {(entry["baseline"], entry["point"]) for entry in before}
        missing = {
            f"{name}@{point}": (name, point)
            for point in self.config.points
            for name in self.config.baselines
            if (name, point) not in done
        }
        tuned = tune(
            {key: self._candidates(*one) for key, one in missing.items()},
            lambda plans: self._answers("validation", plans, ("tuning", report)).right,
        )
        return [
            {"baseline": name, "point": point} | tuned[key]
            for key, (name, point) in missing.items()
        ]

    def _plans(self, tuned: list[dict[str, Any]]) -> dict[str, Plan]:
        """Return all plans that answer the test questions, by `VARIANT` or `VARIANT#SEED`."""
        plans: dict[str, Plan] = {WHOLE: Plan()}
        for entry in tuned:
            settings = self._candidates(entry["baseline"], entry["point"])
            plans[f"{entry['baseline']}@{entry['point']}"] = settings[entry["chosen"]].plan
        is_known = self.earlier is not None and "random@half" in self.earlier.results.right
        if "random" in self.config.baselines and not is_known and self.shape.vision is not None:
            plans["random@half"] = Plan(Stage1(build("random"), self.shape.vision // 2))
        for name, seed in self.runs:
            plan = Plan.load(self.out / f"{name}_{seed}")
            plans[f"{name}#{seed}"] = plan
            training = self.config.trainings[name]
            if training.point is not None:
                self._check_cost(name, plan, training.point)
            if name.startswith(TWO_STAGE):
                plans[f"{name}, untrained#{seed}"] = untrained(plan, seed)
                if seed == training.seeds[0]:
                    plans |= {f"{name}, {change}": other for change, other in ablations(plan)}
        return plans

    def _check_cost(self, name: str, plan: Plan, point: str) -> None:
        spent = spending(self.shape, plan, self.text) / self.allowed(point)
        if spent > 1 + CLOSE and not self.config.tiny:
            raise InputError(
                f"trainings.{name}: costs {spent:.3f} times the cost of point {point}; expected at "
                f"most {1 + CLOSE}: lower its budgets"
            )

    def _test(self, plans: dict[str, Plan], report: Report) -> dict[str, Any]:
        answers = self._answers("test", plans, ("questions", report))
        examples = self._examples("test", self.config.questions)
        _, blind = answer_blindly(examples, self.config.blind_scenes)
        return {
            "measured": provenance(str(self.device)),
            "families": answers.families,
            "right": {name: as_bits(right) for name, right in answers.right.items()}
            | {BLIND: as_bits(blind)},
            "cost": answers.cost,
            "allowed": {point: self.allowed(point) for point in self.config.points},
        }

    def _answers(
        self,
        split: Literal["validation", "test"],
        plans: dict[str, Plan],
        progress: tuple[str, Report],
    ) -> Answers:
        config, (step, report) = self.config, progress
        count = config.questions if split == "test" else config.tuning_questions
        return answer_questions(
            self.model,
            self.processor,
            self._examples(split, count),
            plans,
            batch_size=config.batch_size,
            on_progress=lambda done: report(step, done, count),
        )

    def _examples(self, split: Literal["validation", "test"], count: int) -> SceneExamples:
        assert self.shape.vision is not None  # hosts that read scenes have one image size
        side = math.isqrt(self.shape.vision)
        return SceneExamples(self.scenes, split, count, grid=(side, side), device=self.device)


def train_all(
    configs: Sequence[TokensTrainConfig], workers: int = 1, report: Report = lambda *_: None
) -> None:
    """Run the trainings that are missing, `workers` at a time; interrupted ones continue."""
    count = sum(not _is_trained(config) for config in configs)
    with helpers(min(workers, count) - 1, _train_missing, configs):
        _train_missing(configs, report)


def _train_missing(configs: Sequence[TokensTrainConfig], report: Report = lambda *_: None) -> None:
    def missing() -> list[TokensTrainConfig]:
        found = [config for config in configs if not _is_trained(config)]
        report("trainings", len(configs) - len(found), len(configs))
        return found

    work_through(missing, _attempt)


def _attempt(config: TokensTrainConfig) -> bool:
    """Run a training, unless it is done; return False if another process does it."""
    lock = config.train.out / "locks" / config.train.name
    return run_once(lock, lambda: _is_trained(config), lambda: _train(config))


def _train(config: TokensTrainConfig) -> None:
    result = fit(TokensTask(config), config.train, resume=True)
    record = {"best_step": result.best_step, "best": result.best}
    text = json_module.dumps(record | {"config": _settings(config)}, indent=1)
    write_text(config.train.folder / _TRAINED, text + "\n")


def _is_trained(config: TokensTrainConfig) -> bool:
    return read_finished(config.train.folder / _TRAINED, _settings(config)) is not None


def _settings(config: TokensTrainConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude={"train": {"out"}})


def weights_digest(run: Path) -> str:
    """Return a hash of the weights of a training's best checkpoint."""
    weights = sorted((run / "best").resolve().glob("*.safetensors"))
    joined = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in weights)
    return hashlib.sha256(joined).hexdigest()[:12]


def untrained(plan: Plan, seed: int) -> Plan:
    """Return the same plan with untrained parts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(mix(seed, 1)) % 2**31)
        stage1 = plan.stage1
        if stage1 is not None and isinstance(stage1.reducer, TokenMerger):
            stage1 = replace(stage1, reducer=TokenMerger(stage1.reducer.shape))
        if not plan.cuts:
            return replace(plan, stage1=stage1)
        head = plan.cuts[0].reducer
        assert isinstance(head, LayerPruner)
        heads = LayerPruners(head.shape(plan.layers))
        cuts = [
            replace(cut, reducer=heads[layer])
            for layer, cut in zip(plan.layers, plan.cuts, strict=True)
        ]
    return replace(plan, stage1=stage1, cuts=cuts)


def ablations(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield variants of a trained plan, each with one change."""
    yield "positions reindexed", replace(plan, positions="reindex")
    if plan.size_bias and plan.stage1 is not None:
        yield "sizes forgotten", replace(plan, size_bias=False)
    for name, place in (("last", -1), ("first", 0)) if plan.cuts else ():
        changed = list(plan.cuts)
        changed[place] = replace(changed[place], reducer=build("random"))
        yield f"{name} cut by chance", replace(plan, cuts=changed)


if __name__ == "__main__":
    raise SystemExit(run_script(run))
