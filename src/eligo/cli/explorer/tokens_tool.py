"""Live pruning: a question on an image, answered with all vision tokens and with a budget.

The slider sets how many tokens enter the language model; later stages scale with it. `plan` is the
shipped plan with the nearest budget; without one, a training-free plan. Any method can be chosen
instead, and any two are shown side by side. `own_tool` does the same with a user's model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from PIL import Image
from torch import Tensor

from eligo.cli.explorer.questions import check_question
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.explorer.tools import (
    LiveBudget,
    LiveChoice,
    LiveExample,
    LiveImage,
    LiveRequest,
    LiveText,
    LiveTool,
)
from eligo.pretrained.load import shipped_model, shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.vlm import MADE_BY
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.proposals import PROPORTIONS, cut_layers
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import SceneExamples, TokenExample
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.predict import Prediction, predict
from eligo.tokens.inference.record import record
from eligo.tokens.inference.resolve import move_plan, place_method, shipped_plans
from eligo.tokens.methods import METHODS, VIDEO_METHODS, build
from eligo.tokens.plan import Cut, Plan, Stage1

_EXAMPLES = 12  # two questions of each family
_STEPS = 36  # of the slider
_CACHED = 256  # cached answers of the unpruned model
_PLAN, NOTHING = "plan", "nothing"
METHODS_OF_IMAGES = tuple(
    name for name in METHODS if name not in ("none", "oracle", *VIDEO_METHODS)
)
_STRANGE = (
    "The tiny LLaVA was trained on generated scenes only; on other images its answers mean little."
)


def tokens_tool(device: str) -> LiveTool | None:
    """Return the tool, or None if the tiny LLaVA is not shipped."""
    if "vlm" not in shipped_models():
        return None
    shape = HostShape.load(shipped_model("vlm", made_by=MADE_BY))
    supply = shape.vision
    assert supply is not None  # set for hosts with one image size
    plans = list(shipped_plans().values()) or [_training_free_plan(supply, shape.num_layers)]
    for plan in plans:
        move_plan(plan, device)
    questions = SceneExamples(SceneConfig(), "validation", _EXAMPLES).__getitems__(range(_EXAMPLES))
    examples = [_example(question) for question in questions]
    known = {
        (example.image, question.question): question.answer
        for example, question in zip(examples, questions, strict=True)
    }
    step = max(1, supply // _STEPS)
    return LiveTool(
        name="tokens",
        title="Prune vision tokens",
        text=LiveText("Question", "what colour is the large ball?", examples[0].text),
        budget=LiveBudget(
            "Vision tokens that enter the language model", step, supply, step,
            step * (_first(plans[0], supply) // step), f"of {supply}",
        ),
        choices=[
            LiveChoice("method", "Method", (_PLAN, *METHODS_OF_IMAGES)),
            LiveChoice("beside", "Beside it", (NOTHING, _PLAN, *METHODS_OF_IMAGES)),
        ],
        examples=examples,
        run=_TinyPruner(device, plans, supply, known).run,
    )  # fmt: skip


def _example(scene: TokenExample) -> LiveExample:
    assert isinstance(scene.image, Tensor)
    title = f"{scene.family}: {scene.question}"
    return LiveExample(scene.id, title, rgb_picture(scene.image), scene.question)


class Pruner:
    """A host with a cache of its unpruned answers; a subclass says which host, plans and notes."""

    max_new_tokens = 16

    def __init__(self, known: Mapping[tuple[LiveImage, str], str]) -> None:
        self.known = known
        # Keyed by image key, not by image, to keep no image in memory.
        self._answers: dict[tuple[str, str], str] = {}

    @cached_property
    def host(self) -> tuple[Any, Any]:
        """Model and processor."""
        raise NotImplementedError

    def plan(self, name: str, budget: int | float) -> Plan:
        """Return the plan of an option of the menu."""
        return place_method(build(name), (budget,))

    def note(self, request: LiveRequest) -> str:
        """Refuse a question that cannot be asked; return a note on the answers, or nothing."""
        raise NotImplementedError

    def run(self, request: LiveRequest) -> ExplorerRecord:
        """Return both answers, the tokens kept by each stage, and the cost."""
        note = self.note(request)
        assert request.image is not None
        assert request.budget is not None
        chosen = [request.choices["method"], request.choices["beside"]]
        names = [name for name in chosen if name != NOTHING]
        plans = [self.plan(name, request.budget) for name in names]
        full_answer = self._full_answer(request.image, request.text)
        predictions = [self._predict(plan, request.image.picture, request.text) for plan in plans]
        right = self.known.get((request.image, request.text))
        named = [("all tokens", full_answer)]
        named += [
            (_described(plan), prediction.answer)
            for plan, prediction in zip(plans, predictions, strict=True)
        ]
        answers = [
            Answer(who, answer, None if right is None else answer == right) for who, answer in named
        ]
        return beside([record(one, answers=answers, note=note) for one in predictions], names)

    def _full_answer(self, image: LiveImage, question: str) -> str:
        key = (image.key, question)
        if key not in self._answers:
            answer = self._predict(Plan(), image.picture, question).answer
            if len(self._answers) >= _CACHED:
                del self._answers[next(iter(self._answers))]  # the oldest
            self._answers[key] = answer
        return self._answers[key]

    def _predict(self, plan: Plan, image: Image.Image, question: str) -> Prediction:
        model, processor = self.host
        return predict(
            image, question, model=model, processor=processor, plan=plan,
            max_new_tokens=self.max_new_tokens,
        )  # fmt: skip


class _TinyPruner(Pruner):
    """The tiny LLaVA, loaded on first use, with the shipped plans."""

    def __init__(
        self,
        device: str,
        plans: Sequence[Plan],
        supply: int,
        known: Mapping[tuple[LiveImage, str], str],
    ) -> None:
        super().__init__(known)
        self.device, self.plans, self.supply = device, plans, supply
        self.examples = {image for image, _ in known}

    @cached_property
    def host(self) -> tuple[Any, Any]:
        return load_host(HostConfig(), device=self.device)

    def plan(self, name: str, budget: int | float) -> Plan:
        if name == _PLAN:
            return plan_at(self.plans, int(budget), self.supply)
        return super().plan(name, int(budget))

    def note(self, request: LiveRequest) -> str:
        note = check_question(self.host[1].tokenizer, request.text)
        strange = "" if request.image in self.examples else _STRANGE
        return " ".join(filter(None, [note, strange]))


def beside(records: Sequence[ExplorerRecord], names: Sequence[str]) -> ExplorerRecord:
    """Return the first record with the stages of all; the cost of each, if there are several."""
    if len(records) == 1:
        return records[0]
    cost = {
        f"{name}: {label}": one.cost[label]
        for label in (
            "vision tokens",
            "fewer from layer",
            "selector",
            "FLOPs saved, selector counted",
        )
        for name, one in zip(names, records, strict=True)
    }
    stages = tuple(stage for one in records for stage in one.stages)
    return replace(records[0], stages=stages, cost=cost)


def _described(plan: Plan) -> str:
    return ", then ".join(dict.fromkeys(stage.reducer.name for stage in plan.stages))


def plan_at(plans: Sequence[Plan], budget: int, supply: int) -> Plan:
    """Return the plan with the nearest budget, scaled to the given one.

    >>> plan = Plan(Stage1(build("divprune"), 288), [Cut(2, build("fastv"), 200)])
    >>> plan_at([plan], 144, 576).counts((576,))
    (144, 100)
    """
    nearest = min(plans, key=lambda plan: abs(_first(plan, supply) - budget))
    scale = budget / _first(nearest, supply)
    stages = [
        replace(stage, budget=max(1, round(scale * kept)), ratio=None)
        for stage, kept in zip(nearest.stages, nearest.counts((supply,)), strict=True)
    ]
    first = stages[0] if isinstance(stages[0], Stage1) else None
    return replace(
        nearest, stage1=first, cuts=[stage for stage in stages if isinstance(stage, Cut)]
    )


def _first(plan: Plan, supply: int) -> int:
    """Return how many tokens the first stage keeps."""
    return plan.counts((supply,))[0]


def _training_free_plan(supply: int, num_layers: int) -> Plan:
    """Return a training-free plan: half by diversity, then by attention at the default layers."""
    kept = supply // 2
    cuts = [
        Cut(layer, build("fastv"), max(1, round(kept * share)))
        for layer, share in zip(cut_layers(num_layers), PROPORTIONS, strict=False)
    ]
    return Plan(Stage1(build("divprune"), kept), cuts)
