"""One's own questions on one's own images: the same host with all vision tokens and with fewer."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from eligo.cli.console import warn_unknown_words
from eligo.cli.demo.part import Part, Row, Work
from eligo.cli.demo.tokens import ASKS, NAME
from eligo.errors import InputError
from eligo.explorer.record import Answer
from eligo.images import open_image
from eligo.io.reading import numbered_lines
from eligo.pretrained.chat import place_image
from eligo.pretrained.load import shipped_models
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.count import Cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.equal_cost import spending
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.record import record
from eligo.tokens.inference.resolve import move_plan
from eligo.tokens.methods import build
from eligo.tokens.plan import Plan, Stage1
from eligo.tokens.plan_files import PLAN
from eligo.train.progress import ProgressBar
from eligo.vqa import VqaExample, normalise_answer, read_vqa, read_vqa_lines, vqa_accuracy

_RECORDS, _QUICK = 12, 8
_STAND_IN = "tome"
_SHARE = 1 / 3  # of the tokens: both for a host that no trained plan is shipped for
_TEXT = 20  # tokens of a question, to find the cheapest plan by
_NOTE = (
    "{count} of your questions, put to {host}. Score: right answers ('same answer': as with all "
    "tokens). FLOPs: language model and selector. Time: to the first token of the first answer, "
    "median of ten."
)
_TINY = " It knows generated scenes only: on photographs say --model FOLDER."
_REST = (
    " The other parts need more than questions: see eligo shots predict, eligo patches search and "
    "eligo pixels predict."
)


class _Said(NamedTuple):
    answer: str
    cost: Cost


def run(
    work: Work, images: Path | None, questions: Path, model: str | None, plan: str | None
) -> Part:
    """Answer every question twice; compare answers and costs."""
    asked = read_questions(questions, images)[: _QUICK if work.quick else None]
    host, processor = load_host(HostConfig(model=model), device=work.device)
    warn_unknown_words(processor.tokenizer, (one.question for one in asked))
    name, pruned = choose_plan(HostShape.of(host), model, plan)
    move_plan(pruned, work.device)
    is_learned = any(isinstance(stage.reducer, nn.Module) for stage in pruned.stages)
    whole: list[_Said] = []
    fewer: list[_Said] = []
    records = []
    with ProgressBar("questions", len(asked)) as bar:
        for number, one in enumerate(asked):
            image = open_image(one.image)
            full, found = (
                predict(
                    image,
                    one.question,
                    model=host,
                    processor=processor,
                    plan=used,
                    timed=number == 0,
                )
                for used in (Plan(), pruned)
            )
            whole.append(_Said(full.answer, full.cost))
            fewer.append(_Said(found.answer, found.cost))
            if number < _RECORDS:
                said = (("all tokens", full.answer), (name, found.answer))
                answers = [Answer(who, text, _is_right(text, one)) for who, text in said]
                note = f"{one.image.name}{_truth(one)}"
                records.append(record(found, answers=answers, note=note))
            bar.update(number + 1)
    same = [
        normalise_answer(a.answer) == normalise_answer(b.answer)
        for a, b in zip(whole, fewer, strict=True)
    ]
    rows = (
        _row("all tokens", whole, asked),
        _row(name, fewer, asked, is_ours=is_learned),
        Row.of_hits("same answer", same),
    )
    told = "the tiny LLaVA" if model is None else Path(model).name
    note = _NOTE.format(count=len(asked), host=told) + (_TINY if model is None else "") + _REST
    return Part(NAME, ASKS, note, rows, tuple(records))


def read_questions(path: Path, images: Path | None) -> list[VqaExample]:
    """JSON lines, VQAv2's questions (.json), or lines of image, question and perhaps an answer
    with tabs between."""
    if images is not None and not images.is_dir():
        raise InputError(f"--images: there is no folder {images}")
    if path.suffix == ".jsonl":
        return read_vqa_lines(path, images, need_answers=False)
    if path.suffix == ".json":
        if images is None:
            raise InputError(f"--questions {path}: VQA questions need --images, the image folder")
        return read_vqa(path, None, images)
    return _read_lines(path, path.parent if images is None else images)


def _read_lines(path: Path, folder: Path) -> list[VqaExample]:
    found = []
    for number, line in numbered_lines(path):
        image, *rest = (part.strip() for part in line.split("\t"))
        if len(rest) not in (1, 2) or not rest[0]:
            raise InputError(
                f"{path}:{number}: got {line!r:.60}, expected IMAGE, QUESTION and perhaps ANSWER "
                "with tabs between them"
            )
        if not (folder / image).is_file():
            raise InputError(f"{path}:{number}: there is no image {folder / image}")
        question = place_image(rest[0], f"{path}:{number}: question")
        if not question:
            raise InputError(f"{path}:{number}: question: holds {rest[0]!r} and no words")
        answers = tuple(filter(None, rest[1:]))
        found.append(VqaExample(str(number), folder / image, question, answers))
    if not found:
        raise InputError(f"{path}: holds no questions")
    return found


def choose_plan(shape: HostShape, model: str | None, plan: str | None) -> tuple[str, Plan]:
    """The one that is asked for; else the cheapest shipped one; else a baseline's."""
    if plan is not None:
        return Path(plan).name, Plan.from_pretrained(plan)
    learned = {name: Plan.from_pretrained(name) for name in shipped_models(PLAN)}
    if model is None and learned:
        name = min(learned, key=lambda name: spending(shape, learned[name], _TEXT))
        return name, learned[name]
    return _STAND_IN, Plan(Stage1(build(_STAND_IN), ratio=_SHARE))


def _row(
    name: str, found: Sequence[_Said], asked: Sequence[VqaExample], *, is_ours: bool = False
) -> Row:
    spent = [1 - one.cost.reduction_with_selector for one in found]
    first = found[0].cost.measured.ttft_p50_ms
    schedule = found[0].cost.schedule
    counts = [schedule.merged, *(budget for _, budget in schedule.cuts)]
    right = [_is_right(one.answer, row) for one, row in zip(found, asked, strict=True)]
    return Row.of_hits(
        name,
        [one for one in right if one is not None],
        ">".join(map(str, counts)),
        flops=sum(spent) / len(spent),
        seconds=None if first is None else first / 1000,
        is_ours=is_ours,
    )


def _is_right(said: str, asked: VqaExample) -> bool | None:
    return vqa_accuracy(said, asked.answers) > 0.5 if asked.answers else None


def _truth(asked: VqaExample) -> str:
    return f"; the answer is: {asked.answers[0]}" if asked.answers else ""
