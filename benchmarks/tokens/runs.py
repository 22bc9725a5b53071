"""The exam: what is learned pruning worth, against every training-free method at equal cost?

Spec, "Exam on the tiny LLaVA". Plans are trained (on the training split, checkpoints chosen on the
validation split), baselines are tuned on the validation split with as many trials each (or all the
settings they have, where those are fewer), then all answer the same questions of the test split
once. Trainings are run folders, the other two steps files: what is there is not made again. Only
ours is trained; that is the comparison.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.tokens.config import TWO_STAGE, ExamConfig
from eligo.errors import InputError
from eligo.io.files import kept_json, write_text
from eligo.io.reading import read_json, reading
from eligo.report.provenance import provenance
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import SceneExamples
from eligo.tokens.data.scene_source import SceneSource
from eligo.tokens.inference.answers import BLIND, WHOLE, Asker, answer_blindly, bits
from eligo.tokens.inference.equal_cost import CLOSE, Matched, candidates, spending
from eligo.tokens.inference.load import load_host
from eligo.tokens.inputs_config import ScenesDataConfig
from eligo.tokens.methods import build
from eligo.tokens.model.layer_pruners import LayerPruner, LayerPruners
from eligo.tokens.model.token_merger import TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.training.task import TokensTask
from eligo.train import fit
from eligo.train.rng import mix

Tell = Callable[[str, int, int], None]
_RESULT = "exam_answers.json"
_TUNING = "exam_tuning.json"
_TRAINED = "trained.json"


class Exam:
    """All steps of an exam, in one folder."""

    def __init__(self, config: ExamConfig, out: Path, device: torch.device) -> None:
        if not config.trainings:
            raise InputError("the exam has no trainings; expected some, as in tokens/exam")
        self.config, self.out, self.device = config, out, device
        first = config.run(next(iter(config.trainings)), 0)
        if not isinstance(first.data, ScenesDataConfig):
            raise InputError("the exam is held on scenes; expected data.kind: scenes")
        self.host, self.scenes = first.host, first.data.scenes

    def run(self, tell: Tell = lambda *_: None) -> dict[str, Any]:
        """Whatever is missing; then which of whose answers were right, and what they cost."""
        self.train(tell)
        self.model, self.processor = load_host(self.host, device=str(self.device))
        tuned = kept_json(self.out / _TUNING, self._tuning_key(), lambda: self._tune(tell))
        arms = self._arms(tuned)
        asked = self.config.model_dump(mode="json", include={"questions", "blind_scenes"})
        key = self._tuning_key() | asked | {"parts": self._parts()}
        found = kept_json(self.out / _RESULT, key, lambda: self._ask(arms, tell))
        return {"tuning": tuned, **found}

    # -------------------------------------------------------------- trainings

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Name and seed of every training."""
        return [
            (name, seed)
            for name, training in self.config.trainings.items()
            for seed in training.seeds
        ]

    def train(self, tell: Tell = lambda *_: None, only: Sequence[str] = ()) -> None:
        """Every training that is not there yet; one that was interrupted goes on.

        `only`: names of runs, `NAME_SEED`; so several processes can share the work.
        """
        names = [f"{name}_{seed}" for name, seed in self.runs]
        unknown = [name for name in only if name not in names]
        if unknown:
            raise InputError(f"got {unknown[0]!r}, expected one of {', '.join(names)}")
        wanted = [
            run for run, name in zip(self.runs, names, strict=True) if name in (only or names)
        ]
        for number, (name, seed) in enumerate(wanted):
            tell("trainings", number, len(wanted))
            config = self.config.run(name, seed).replace({"train.out": self.out})
            mark = config.train.folder / _TRAINED
            asked = config.model_dump(mode="json", exclude={"train": {"out"}})
            if mark.is_file():
                with reading(mark, "the result of a training; remove it to train again"):
                    before = read_json(mark)["config"]
                if before != asked:
                    raise InputError(
                        f"{mark.parent}: was trained with other settings; expected those of this "
                        "exam: remove the folder, or choose another --out"
                    )
                continue
            result = fit(TokensTask(config), config.train, resume=True)
            told = {"best_step": result.best_step, "best": result.best, "config": asked}
            write_text(mark, json.dumps(told, indent=1) + "\n")
        tell("trainings", len(wanted), len(wanted))

    def plan(self, name: str, seed: int) -> Plan:
        """What a training came to: its best checkpoint by the validation split."""
        return Plan.load(self.out / f"{name}_{seed}")

    def _parts(self) -> dict[str, str]:
        """What tells one training's weights from another's."""
        told = {}
        for name, seed in self.runs:
            best = (self.out / f"{name}_{seed}" / "best").resolve()
            weights = sorted(best.glob("*.safetensors"))
            joined = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in weights)
            told[f"{name}_{seed}"] = hashlib.sha256(joined).hexdigest()[:12]
        return told

    # -------------------------------------------------------------- baselines

    def allowed(self, asker: Asker, point: str) -> float:
        """FLOPs that may be spent at a point."""
        first = Plan(Stage1(build("random"), self.config.points[point]))
        return spending(asker.shape, first, self._text())

    def _text(self) -> int:
        """Usual length of a prompt without its image."""
        return SceneSource(ScenesDataConfig(scenes=self.scenes), 1).num_text

    def _tune(self, tell: Tell) -> list[dict[str, Any]]:
        """The best setting of every baseline at every point, by the validation split."""
        asker = self._asker("validation", self.config.tuning_questions)
        trials = {
            f"{name}@{point}#{number}": (name, point, matched)
            for point in self.config.points
            for name in self.config.baselines
            for number, matched in enumerate(self._candidates(asker, name, point))
        }
        answers = asker.ask(
            {key: matched.plan for key, (_, _, matched) in trials.items()},
            lambda done: tell("tuning", done, self.config.tuning_questions),
        )
        tuned: dict[tuple[str, str], dict[str, Any]] = {}
        for key, (name, point, matched) in trials.items():
            right = sum(answers.right[key]) / len(answers.right[key])
            entry = tuned.setdefault(
                (name, point), {"baseline": name, "point": point, "trials": []}
            )
            entry["trials"].append(
                {"setting": matched.arrangement.name, "accuracy": right, "spent": matched.spent}
            )
        for entry in tuned.values():
            accuracies = [trial["accuracy"] for trial in entry["trials"]]
            entry["chosen"] = accuracies.index(max(accuracies))
        return list(tuned.values())

    def _candidates(self, asker: Asker, name: str, point: str) -> list[Matched]:
        allowed = self.allowed(asker, point)
        return candidates(name, asker.shape, self._text(), allowed, self.config.trials)

    # -------------------------------------------------------------- arms

    def _arms(self, tuned: list[dict[str, Any]]) -> dict[str, Plan]:
        """All plans that answer the test questions, by name: `ARM` or `ARM#SEED`."""
        asker = self._asker("test", 1)
        arms: dict[str, Plan] = {WHOLE: Plan()}
        for entry in tuned:
            found = self._candidates(asker, entry["baseline"], entry["point"])
            arms[f"{entry['baseline']}@{entry['point']}"] = found[entry["chosen"]].plan
        if "random" in self.config.baselines and asker.shape.vision is not None:
            arms["random@half"] = Plan(Stage1(build("random"), asker.shape.vision // 2))
        for name, seed in self.runs:
            plan = self.plan(name, seed)
            arms[f"{name}#{seed}"] = plan
            point = self.config.trainings[name].point
            if point is not None:
                self._check_cost(asker, name, plan, point)
            if name.startswith(TWO_STAGE):
                arms[f"{name}, untrained#{seed}"] = untrained(plan, seed)
                if seed == self.config.trainings[name].seeds[0]:
                    arms |= {f"{name}, {what}": other for what, other in variants(plan)}
        return arms

    def _check_cost(self, asker: Asker, name: str, plan: Plan, point: str) -> None:
        spent = spending(asker.shape, plan, self._text()) / self.allowed(asker, point)
        if spent > 1 + CLOSE and not self.config.tiny:
            raise InputError(
                f"trainings.{name}: spends {spent:.3f} of what point {point} allows; expected at "
                f"most {1 + CLOSE}: lower its budgets"
            )

    def _ask(self, arms: dict[str, Plan], tell: Tell) -> dict[str, Any]:
        asker = self._asker("test", self.config.questions)
        answers = asker.ask(arms, lambda done: tell("questions", done, self.config.questions))
        _, blind = answer_blindly(asker.examples, self.config.blind_scenes)
        allowed = {point: self.allowed(asker, point) for point in self.config.points}
        return {
            "measured": provenance("eligo", str(self.device)),
            "families": answers.families,
            "right": {name: bits(right) for name, right in answers.right.items()}
            | {BLIND: bits(blind)},
            "cost": answers.cost,
            "allowed": allowed,
        }

    def _asker(self, split: Literal["validation", "test"], questions: int) -> Asker:
        supply = HostShape.of(self.model).vision
        assert supply is not None  # hosts that read scenes have images of one size
        side = math.isqrt(supply)
        examples = SceneExamples(
            self.scenes, split, questions, grid=(side, side), device=self.device
        )
        return Asker(self.model, self.processor, examples, batch_size=self.config.batch_size)

    # -------------------------------------------------------------- files

    def _tuning_key(self) -> dict[str, Any]:
        config = self.config
        named = {"points", "baselines", "trials", "tuning_questions", "base", "tiny"}
        return config.model_dump(mode="json", include=named)


def untrained(plan: Plan, seed: int) -> Plan:
    """The same plan before its training: what the design alone is worth."""
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


def variants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """A trained plan used otherwise than it was trained."""
    yield "positions reindexed", replace(plan, positions="reindex")
    if plan.size_bias and plan.stage1 is not None:
        yield "sizes forgotten", replace(plan, size_bias=False)
    if plan.cuts:
        last = plan.cuts[-1]
        by_chance = Cut(last.layer, build("random"), last.budget, last.ratio)
        yield "last cut by chance", replace(plan, cuts=[*plan.cuts[:-1], by_chance])
        first = plan.cuts[0]
        by_chance = Cut(first.layer, build("random"), first.budget, first.ratio)
        yield "first cut by chance", replace(plan, cuts=[by_chance, *plan.cuts[1:]])
