"""Your own questions on your own images, with all vision tokens and with fewer."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from eligo.cli.console import warn_unknown_words
from eligo.cli.demo.part import DemoSettings, MethodResult, Part
from eligo.cli.demo.tokens import NAME, QUESTION
from eligo.errors import InputError
from eligo.explorer.record import Answer
from eligo.images import open_image
from eligo.io.reading import numbered_lines
from eligo.pretrained.chat import place_image
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.flops import Cost
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.equal_cost import spending
from eligo.tokens.inference.load import load_host
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.record import record
from eligo.tokens.inference.resolve import move_plan, shipped_plans
from eligo.tokens.methods import build
from eligo.tokens.plan import Plan, Stage1
from eligo.train.progress import ProgressBar
from eligo.vqa import VqaExample, normalise_answer, read_vqa, read_vqa_lines, vqa_accuracy

_RECORDS, _QUICK = 12, 8
_DEFAULT_METHOD, _RATIO = "tome", 1 / 3  # for a host without a shipped plan
_TEXT = 20  # assumed tokens of a question, to find the cheapest plan
_NOTE = (
    "{count} of your questions, put to {host}. Score: accuracy ('same answer': as with all "
    "tokens). FLOPs: language model and selector. Time: to the first token of the first answer, "
    "median of ten."
)
_TINY = " It was trained on generated scenes only: for photographs, give --model FOLDER."
_REST = (
    " For the other tasks, see eligo shots predict, eligo patches search and eligo pixels predict."
)


class _Result(NamedTuple):
    answer: str
    cost: Cost


def run(
    settings: DemoSettings,
    images: Path | None,
    questions: Path,
    model: str | None,
    plan: str | None,
) -> Part:
    """Answer every question with all tokens and with a plan; compare answers and costs."""
    examples = read_questions(questions, images)[: _QUICK if settings.quick else None]
    host, processor = load_host(HostConfig(model=model), device=settings.device)
    warn_unknown_words(processor.tokenizer, (example.question for example in examples))
    name, pruned = choose_plan(HostShape.of(host), model, plan)
    move_plan(pruned, settings.device)
    is_learned = any(isinstance(stage.reducer, nn.Module) for stage in pruned.stages)
    whole: list[_Result] = []
    fewer: list[_Result] = []
    records = []
    with ProgressBar("questions", len(examples)) as bar:
        for number, example in enumerate(examples):
            image = open_image(example.image)
            full, reduced = (
                predict(
                    image,
                    example.question,
                    model=host,
                    processor=processor,
                    plan=plan_used,
                    timed=number == 0,
                )
                for plan_used in (Plan(), pruned)
            )
            whole.append(_Result(full.answer, full.cost))
            fewer.append(_Result(reduced.answer, reduced.cost))
            if number < _RECORDS:
                texts = {"all tokens": full.answer, name: reduced.answer}
                answers = [
                    Answer(who, text, _is_right(text, example)) for who, text in texts.items()
                ]
                note = f"{example.image.name}{_reference(example)}"
                records.append(record(reduced, answers=answers, note=note))
            bar.update(number + 1)
    same = [
        normalise_answer(a.answer) == normalise_answer(b.answer)
        for a, b in zip(whole, fewer, strict=True)
    ]
    rows = (
        _row("all tokens", whole, examples),
        _row(name, fewer, examples, is_ours=is_learned),
        MethodResult.of_hits("same answer", same),
    )
    host_name = "the tiny LLaVA" if model is None else Path(model).name
    note = (
        _NOTE.format(count=len(examples), host=host_name) + (_TINY if model is None else "") + _REST
    )
    return Part(NAME, QUESTION, note, rows, tuple(records))


def read_questions(path: Path, images: Path | None) -> list[VqaExample]:
    """Read JSON lines, questions of VQAv2 (.json), or lines IMAGE<tab>QUESTION[<tab>ANSWER]."""
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
    examples = []
    for number, line in numbered_lines(path):
        image, *rest = (part.strip() for part in line.split("\t"))
        if len(rest) not in (1, 2) or not rest[0]:
            raise InputError(
                f"{path}:{number}: got {line!r:.60}, expected IMAGE, QUESTION and "
                "optionally ANSWER, separated by tabs"
            )
        if not (folder / image).is_file():
            raise InputError(f"{path}:{number}: there is no image {folder / image}")
        question = place_image(rest[0], f"{path}:{number}: question")
        if not question:
            raise InputError(f"{path}:{number}: question: got {rest[0]!r}, which has no words")
        answers = tuple(filter(None, rest[1:]))
        examples.append(VqaExample(str(number), folder / image, question, answers))
    if not examples:
        raise InputError(f"{path}: holds no questions")
    return examples


def choose_plan(shape: HostShape, model: str | None, plan: str | None) -> tuple[str, Plan]:
    """Return the given plan, the cheapest shipped one, or (other hosts) a training-free one."""
    if plan is not None:
        return Path(plan).name, Plan.from_pretrained(plan)
    learned = shipped_plans()
    if model is None and learned:
        name = min(learned, key=lambda name: spending(shape, learned[name], _TEXT))
        return name, learned[name]
    return _DEFAULT_METHOD, Plan(Stage1(build(_DEFAULT_METHOD), ratio=_RATIO))


def _row(
    name: str, results: Sequence[_Result], examples: Sequence[VqaExample], *, is_ours: bool = False
) -> MethodResult:
    spent = [1 - result.cost.reduction_with_selector for result in results]
    first = results[0].cost.measured.ttft_p50_ms
    schedule = results[0].cost.schedule
    counts = [schedule.merged, *(budget for _, budget in schedule.cuts)]
    hits = [_is_right(result.answer, row) for result, row in zip(results, examples, strict=True)]
    return MethodResult.of_hits(
        name,
        [hit for hit in hits if hit is not None],
        ">".join(map(str, counts)),
        flops=sum(spent) / len(spent),
        seconds=None if first is None else first / 1000,
        is_ours=is_ours,
    )


def _is_right(answer: str, example: VqaExample) -> bool | None:
    return vqa_accuracy(answer, example.answers) > 0.5 if example.answers else None


def _reference(example: VqaExample) -> str:
    return f"; the answer is: {example.answers[0]}" if example.answers else ""
