"""Questions answered with all vision tokens, with trained plans, and with training-free baselines
at the FLOPs of the cheapest plan."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from torch import Tensor

from eligo.cli.demo.part import DemoSettings, MethodResult, Part, pick_examples
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.question_kinds import FAMILIES
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.examples import Collator, SceneExamples
from eligo.tokens.inference.equal_cost import Arrangement, match, spending
from eligo.tokens.inference.evaluate import WHOLE, Answers, answer_blindly, answer_questions
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.record import record
from eligo.tokens.inference.resolve import shipped_plans
from eligo.tokens.methods import build, read_method
from eligo.tokens.plan import Plan, Stage1
from eligo.train.progress import ProgressBar

NAME, QUESTION = "tokens", "which vision tokens survive inside the language model?"
HOST = "vlm"
BASELINES = {"tome": "tome:rounds=8", "visionzip": "visionzip:contextual_ratio=0.4"}
"""With the best settings at this cost, according to `python -m benchmarks.tokens.study`."""
BLIND = "no image (blind)"
_QUESTIONS = 72  # twelve of each family
_BLIND_SCENES = 2000  # of the training split, on which blind answers are fitted
_SHARE = 1 / 9  # of the tokens, which sets the cost of the baselines without a trained plan
_RECORDS = 5
_NOTE = (
    "{count} questions on as many new scenes, answered by the tiny LLaVA. Score: accuracy. "
    "Baselines have the FLOPs of the cheapest plan and the best settings of `python -m "
    "benchmarks.tokens.study`. FLOPs: language model and selector. Time: a whole answer, "
    "in batches of six: median of {batches} batches."
)
_NO_PLAN = " No trained plan is shipped yet: only training-free baselines are shown."


def run(settings: DemoSettings) -> Part:
    """Answer the questions with every plan, and compare."""
    if HOST not in shipped_models():
        return Part(NAME, QUESTION, "no trained model is shipped yet")
    host: Any
    host, processor = load_host(HostConfig(), device=settings.device)
    shape, vision = HostShape.of(host), host.config.vision_config
    world = SceneConfig(seed=settings.seed, height=vision.image_size, width=vision.image_size)
    side = vision.image_size // vision.patch_size
    examples = SceneExamples(
        world, "test", settings.count(_QUESTIONS), grid=(side, side), device=settings.device
    )
    learned = shipped_plans()
    plans = compared_plans(shape, learned, _text_length(processor, examples))
    # A batch holds every family once, so that the times of batches can be compared.
    with ProgressBar(NAME, len(examples)) as bar:
        answers = answer_questions(
            host, processor, examples, plans,
            batch_size=len(FAMILIES), timed=True, on_progress=bar.update,
        )  # fmt: skip
    rows = [_row(name, answers, is_ours=name in learned) for name in plans]
    rows.append(
        MethodResult.of_hits(BLIND, answer_blindly(examples, settings.count(_BLIND_SCENES))[1], "0")
    )
    note = _NOTE.format(count=len(examples), batches=len(answers.seconds[WHOLE]))
    return Part(
        NAME,
        QUESTION,
        note + ("" if learned else _NO_PLAN),
        tuple(rows),
        tuple(_records(host, processor, plans, list(learned), examples, answers)),
    )


def compared_plans(shape: HostShape, learned: Mapping[str, Plan], text: int) -> dict[str, Plan]:
    """Return the plans by name: all tokens, trained plans, baselines at the cheapest's FLOPs."""
    spent = [spending(shape, plan, text) for plan in learned.values()]
    if not spent:
        assert shape.vision is not None
        stand_in = Plan(Stage1(build("random"), max(1, round(_SHARE * shape.vision))))
        spent = [spending(shape, stand_in, text)]
    baselines = {
        name: match(Arrangement(read_method(setting)), shape, text, min(spent)).plan
        for name, setting in BASELINES.items()
    }
    return {WHOLE: Plan(), **learned, **baselines}


def _text_length(processor: Any, examples: SceneExamples) -> int:
    """Return the median length of a prompt without its image."""
    batch = Collator(processor)([examples[row] for row in range(min(len(examples), len(FAMILIES)))])
    return int(batch.num_text.median())


def _row(name: str, answers: Answers, *, is_ours: bool) -> MethodResult:
    cost = answers.cost[name]
    return MethodResult.of_hits(
        "all tokens" if name == WHOLE else name,
        answers.right[name],
        ">".join(map(str, cost["kept"])),
        flops=1 - cost["flops_reduction_with_selector"],
        seconds=median(answers.seconds[name]),
        is_ours=is_ours,
    )


def _records(
    host: Any,
    processor: Any,
    plans: Mapping[str, Plan],
    learned: list[str],
    examples: SceneExamples,
    answers: Answers,
) -> list[ExplorerRecord]:
    """Return records of the cheapest trained plan, or of a baseline if no plan is shipped."""
    costs = {name: answers.cost[name]["flops_total"] for name in learned or BASELINES}
    shown = min(costs, key=lambda name: costs[name])
    before, after = (round(1000 * median(answers.seconds[name])) for name in (WHOLE, shown))
    records = []
    for place in _places(answers, shown):
        example = examples[place]
        assert isinstance(example.image, Tensor)
        image = rgb_picture(example.image)
        prediction = predict(
            image, example.question, model=host, processor=processor, plan=plans[shown]
        )
        texts = tuple(
            Answer("all tokens" if name == WHOLE else name, answers.text[name][place], right[place])
            for name, right in answers.right.items()
        )
        note = f"{example.family}; the answer is: {example.answer}"
        shown_record = record(prediction, answers=texts, note=note)
        times = {"an answer, six at a time": f"{before} > {after} ms, median"}
        records.append(replace(shown_record, cost={**shown_record.cost, **times}))
    return records


def _places(answers: Answers, shown: str) -> list[int]:
    """Pick questions: a baseline wrong and ours right, ours wrong, then one of every family."""
    whole, ours = answers.right[WHOLE], answers.right[shown]
    baselines = [
        right for name, right in answers.right.items() if name in BASELINES and name != shown
    ]
    won = [right and not all(others) for right, *others in zip(ours, *baselines, strict=True)]
    lost = [full and not right for full, right in zip(whole, ours, strict=True)]
    firsts = [answers.families.index(family) for family in dict.fromkeys(answers.families)]
    return pick_examples(won, lost, _RECORDS, firsts)
