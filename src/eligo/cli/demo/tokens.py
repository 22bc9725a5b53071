"""Questions answered from all vision tokens, from those that a trained plan keeps, and from as dear
ones of training-free baselines."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from torch import Tensor

from eligo.cli.demo.part import Part, Row, Work, worth_showing
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
from eligo.tokens.methods import build, read_method
from eligo.tokens.plan import Plan, Stage1
from eligo.tokens.plan_files import PLAN
from eligo.train.progress import ProgressBar

NAME, ASKS = "tokens", "which vision tokens survive inside the language model?"
HOST = "vlm"
BASELINES = {"tome": "tome:rounds=8", "visionzip": "visionzip:contextual_ratio=0.4"}
"""With the settings that `eligo tokens exam` found best for them at this cost."""
BLIND = "no image (blind)"
_QUESTIONS = 96  # sixteen of each family
_BLIND_SCENES = 2000  # of the training split, on which blind answers are fitted
_SHARE = 1 / 9  # without a trained plan baselines spend what so many tokens would
_RECORDS = 5
_NOTE = (
    "{count} questions on as many fresh scenes, put to the tiny LLaVA. Score: right answers. "
    "Baselines spend what the cheapest plan does, with the best settings of `eligo tokens exam`. "
    "FLOPs: language model and selector. Time: an answer, all included, "
    "in batches of six: median of {batches} batches."
)
_NO_PLAN = " No trained plan is shipped yet: only training-free baselines are shown."


def run(work: Work) -> Part:
    """Ask, compare, and show some of the questions."""
    if HOST not in shipped_models():
        return Part(NAME, ASKS, "no trained model is shipped yet")
    host: Any
    host, processor = load_host(HostConfig(), device=work.device)
    shape, seen = HostShape.of(host), host.config.vision_config
    world = SceneConfig(seed=work.seed, height=seen.image_size, width=seen.image_size)
    side = seen.image_size // seen.patch_size
    examples = SceneExamples(
        world, "test", work.count(_QUESTIONS), grid=(side, side), device=work.device
    )
    learned = {name: Plan.from_pretrained(name) for name in shipped_models(PLAN)}
    plans = arms(shape, learned, _text_length(processor, examples))
    # A batch holds every family once: all batches are alike, so their times can be compared.
    with ProgressBar(NAME, len(examples)) as bar:
        answers = answer_questions(
            host, processor, examples, plans, batch_size=len(FAMILIES), on_progress=bar.update
        )
    rows = [_row(name, answers, is_ours=name in learned) for name in plans]
    rows.append(Row.of_hits(BLIND, answer_blindly(examples, work.count(_BLIND_SCENES))[1], "0"))
    note = _NOTE.format(count=len(examples), batches=len(answers.seconds[WHOLE]))
    return Part(
        NAME,
        ASKS,
        note + ("" if learned else _NO_PLAN),
        tuple(rows),
        tuple(_records(host, processor, plans, list(learned), examples, answers)),
    )


def arms(shape: HostShape, learned: Mapping[str, Plan], text: int) -> dict[str, Plan]:
    """All tokens, the trained plans, and baselines that spend what the cheapest of these does."""
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
    """Usual length of a prompt without its image."""
    some = Collator(processor)([examples[row] for row in range(min(len(examples), len(FAMILIES)))])
    return int(some.num_text.median())


def _row(name: str, answers: Answers, *, is_ours: bool) -> Row:
    cost = answers.cost[name]
    return Row.of_hits(
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
    """What the cheapest trained plan kept (a baseline's choice, where none is shipped)."""
    costs = {name: answers.cost[name]["flops_total"] for name in learned or BASELINES}
    shown = min(costs, key=lambda name: costs[name])
    before, after = (round(1000 * median(answers.seconds[name])) for name in (WHOLE, shown))
    made = []
    for place in _places(answers, shown):
        asked = examples[place]
        assert isinstance(asked.image, Tensor)
        image = rgb_picture(asked.image)
        found = predict(image, asked.question, model=host, processor=processor, plan=plans[shown])
        said = tuple(
            Answer("all tokens" if name == WHOLE else name, answers.text[name][place], right[place])
            for name, right in answers.right.items()
        )
        note = f"{asked.family}; the answer is: {asked.answer}"
        one = record(found, answers=said, note=note)
        times = {"an answer, six at a time": f"{before} > {after} ms, median"}
        made.append(replace(one, cost={**one.cost, **times}))
    return made


def _places(answers: Answers, shown: str) -> list[int]:
    """Questions: a baseline wrong and ours right, ours wrong, then one of every family."""
    whole, ours = answers.right[WHOLE], answers.right[shown]
    baselines = [
        right for name, right in answers.right.items() if name in BASELINES and name != shown
    ]
    won = [one and not all(others) for one, *others in zip(ours, *baselines, strict=True)]
    lost = [full and not one for full, one in zip(whole, ours, strict=True)]
    firsts = [answers.families.index(family) for family in dict.fromkeys(answers.families)]
    return worth_showing(won, lost, _RECORDS, firsts)
