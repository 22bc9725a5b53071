"""Visual question answering: comparison of answers, VQA accuracy, and readers of question files.

Normalisation and accuracy follow the description published with the VQA challenge: lower case, no
periods except in decimals, number words as digits, no articles, missing apostrophes of contractions
restored, other punctuation a space (apostrophes and colons stay, a comma between digits goes); then
the mean over annotators left out of min(1, matches among the others / 3).

Differs from the challenge's own program in three ways: both sides are always normalised (the
program skips this if all annotators agree), curly apostrophes count as straight ones, and fewer
than four annotators are accepted (see `vqa_accuracy`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, Words, check_row, read_json_lines
from eligo.io.reading import read_json
from eligo.pretrained.chat import place_image

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}
_ARTICLES = {"a", "an", "the"}
_SPACED = re.compile(r"[;/\[\]\"{}()=+\\_\-><@`,?!]")  # not % $ & #, which have a meaning
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")
_NOT_DECIMAL = re.compile(r"\.(?!\d)|(?<=[^\s\d])\.")
_ENDINGS = {  # of contractions, and the words before them
    "s": "he she it that there who what where when why how let somebody someone something everyone",
    "re": "you we they who what",
    "ve": "i you we they who could would should might must",
    "d": "i you he she it we they that there who somebody someone something",
    "ll": "i you he she it we they that there who what",
    "d've": "i you he she it we they that there who",
    "n't": "is are was were do does did has have had ca could wo would should must need might ai",
    "n't've": "could would should might must",
}
_OTHERS = "i'm ma'am o'clock y'all y'all'd've"
# Words of their own, not contractions without an apostrophe.
_WORDS = {"its", "ill", "well", "hell", "shell", "id", "wed", "shed", "were", "whore"}


@dataclass(frozen=True)
class VqaExample:
    """A question on an image file, and its annotated answers."""

    id: str
    image: Path
    question: str
    answers: tuple[str, ...]
    """One per annotator; empty in a test set."""
    kind: str = ""
    """The kind of question as the file names it, such as the answer type of VQAv2."""
    split: str | None = None
    """The split that the line names."""


# ------------------------------------------------------------------ answers


@lru_cache(4096)
def normalise_answer(answer: str) -> str:
    """Return the normalised form of an answer, for comparison.

    >>> normalise_answer("The  two Dogs, dont!")
    "2 dogs don't"
    """
    text = answer.lower().replace("\u2019", "'")
    text = _COMMA_IN_NUMBER.sub("", text)
    text = _NOT_DECIMAL.sub("", _SPACED.sub(" ", text))
    words = (_DIGITS.get(word, word) for word in text.split() if word not in _ARTICLES)
    return " ".join(_contractions().get(word, word) for word in words)


@cache
def _contractions() -> dict[str, str]:
    """Map every spelling that lacks an apostrophe to its contraction."""
    whole = _OTHERS.split()
    for ending, starts in _ENDINGS.items():
        mark = "" if ending.startswith("n't") else "'"
        whole += [f"{start}{mark}{ending}" for start in starts.split()]
    missing: dict[str, str] = {}
    for word in whole:
        parts = word.split("'")
        for marks in product(("", "'"), repeat=len(parts) - 1):
            bare = "".join(part + mark for part, mark in zip(parts, (*marks, ""), strict=True))
            if bare != word and bare not in _WORDS:
                missing.setdefault(bare, word)
    return missing


def vqa_accuracy(answer: str, answers: Sequence[str]) -> float:
    """Return the VQA accuracy of an answer, 0 to 1: the mean over annotators left out of
    min(1, matches among the others / 3).

    With fewer than three others all of them must match; a single annotator is compared directly.

    >>> round(vqa_accuracy("Two", ["2", "2", "2", *["three"] * 7]), 2)
    0.9
    """
    if not answers:
        raise InputError("vqa_accuracy: the question has no annotated answers to compare with")
    mine = normalise_answer(answer)
    same = [normalise_answer(other) == mine for other in answers]
    others = len(same) - 1
    if others == 0:
        return float(same[0])
    needed, total = min(3, others), sum(same)
    return sum(min(1.0, (total - is_same) / needed) for is_same in same) / len(same)


def usual_answer(answers: Sequence[str]) -> str:
    """Return the most frequent answer, normalised; the first one of equally frequent ones."""
    if not answers:
        raise InputError("usual_answer: the question has no annotated answers")
    return Counter(map(normalise_answer, answers)).most_common(1)[0][0]


def fit_usual_answers(asked: Iterable[tuple[str, str, str]]) -> Callable[[str, str], str]:
    """Return the blind baseline (question, kind) -> answer, from (question, kind, answer).

    It gives the usual answer to the question or, if it was never asked, to its kind.

    >>> usual = fit_usual_answers([("is it red?", "colour", "no"), ("is it big?", "size", "yes")])
    >>> usual("is it red?", "colour"), usual("is it old?", "size")
    ('no', 'yes')
    """
    counts: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for question, kind, answer in asked:
        counts[question, True][answer] += 1
        counts[kind, False][answer] += 1

    def usual(question: str, kind: str) -> str:
        found = counts.get((question, True)) or counts.get((kind, False))
        return found.most_common(1)[0][0] if found else ""

    return usual


# ------------------------------------------------------------------ files


class _Question(JsonRow):
    question_id: int
    image_id: int
    question: Words


class _QuestionFile(JsonRow):
    questions: Annotated[list[_Question], Field(min_length=1)]
    data_subtype: Any = ""


class _Answer(JsonRow):
    answer: str


class _Annotation(JsonRow):
    question_id: int
    answers: Annotated[list[_Answer], Field(min_length=1)]
    answer_type: Any = ""


class _AnnotationFile(JsonRow):
    annotations: Annotated[list[_Annotation], Field(min_length=1)]


class _Line(JsonRow):
    image: Words
    question: Words
    answers: Annotated[list[str], Field(min_length=1)] | None = None
    answer: Words | None = None
    id: Any = None
    kind: Any = ""
    family: Any = ""
    split: str | None = None


def read_vqa(
    questions: str | Path, annotations: str | Path | None, images: str | Path
) -> list[VqaExample]:
    """Read the files of VQAv2 or OK-VQA: questions, annotations (None: a test set), image folder.

    An image is `COCO_<data_subtype>_<image_id, 12 digits>.jpg` (or .png), or is named by the number
    alone; it is in the folder, or in a subfolder named after the subtype.
    """
    file = check_row(_QuestionFile, read_json(questions), questions)
    answers: dict[int, _Annotation] = {}
    if annotations is not None:
        rows = check_row(_AnnotationFile, read_json(annotations), annotations).annotations
        answers = {row.question_id: row for row in rows}
    find = _image_finder(Path(images), str(file.data_subtype))
    examples: dict[int, VqaExample] = {}
    for place, row in enumerate(file.questions):
        where, number = f"{questions}: questions[{place}]", row.question_id
        if number in examples:
            raise InputError(f"{where}: question_id: got {number} twice, expected every id once")
        if annotations is not None and number not in answers:
            raise InputError(
                f"{where}: question_id: {number} has no annotation in {annotations}; "
                "are the two files of one split?"
            )
        annotation = answers.get(number)
        examples[number] = VqaExample(
            str(number),
            find(row.image_id, where),
            _question(row.question, where),
            tuple(answer.answer for answer in annotation.answers) if annotation else (),
            str(annotation.answer_type) if annotation else "",
        )
    return list(examples.values())


def read_vqa_lines(
    path: str | Path,
    images: str | Path | None = None,
    *,
    need_answers: bool = True,
    need_images: bool = True,
    split: str | None = None,
) -> list[VqaExample]:
    """Read JSON lines with `image, question, answers`, and optionally `id`, `kind` and `split`.

    A single `answer` may stand for `answers`, and `family` for `kind`. Image paths are relative to
    `images`, by default the folder of the file. With `split`, lines of other splits are left out;
    lines without one are kept.
    """
    folder = Path(path).parent if images is None else Path(images)
    examples, others = [], Counter[str]()
    for number, row in read_json_lines(path, _Line, unique="id"):
        if split is not None and row.split not in (None, split):
            others[row.split] += 1
            continue
        where = f"{path}:{number}"
        if row.answer is not None and row.answers is not None:
            raise InputError(f"{where}: got answer and answers, expected one of them")
        answers = row.answers if row.answer is None else [row.answer]
        image = folder / row.image
        if need_images and not image.is_file():
            raise InputError(f"{where}: image: there is no file {image}")
        if answers is None and (need_answers or "answers" in row.model_fields_set):
            raise InputError(f"{where}: answers: got none, expected a list of texts")
        examples.append(
            VqaExample(
                str(number if row.id is None else row.id),
                image,
                _question(row.question, where),
                tuple(answers or ()),
                str(row.kind or row.family),
                row.split,
            )
        )
    if not examples:
        of = "" if split is None else f" of split {split!r}"
        got = ", ".join(f"{count} of {name!r}" for name, count in others.items())
        raise InputError(f"{path}: holds no questions{of}{got and f', only {got}'}")
    return examples


def _image_finder(folder: Path, subtype: str) -> Callable[[int, str], Path]:
    """Return a function from the number of an image to its file; the folder is listed once."""
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder of images")
    folders = [folder, *([folder / subtype] if subtype and (folder / subtype).is_dir() else [])]
    files = {path.name: path for place in reversed(folders) for path in place.iterdir()}

    def find(number: int, where: str) -> Path:
        stems = (f"COCO_{subtype}_{number:012d}", f"{number:012d}", str(number))
        names = [f"{stem}.{end}" for stem in stems for end in ("jpg", "png", "jpeg")]
        for name in names:
            if name in files:
                return files[name]
        raise InputError(f"{where}: image_id: {number} has no file {names[0]} in {folder}")

    return find


def _question(text: str, where: str) -> str:
    """Return the question without its `<image>` placeholder."""
    question = place_image(text, f"{where}: question")
    if not question.strip():
        raise InputError(f"{where}: question: got {text!r}, expected at least one word")
    return question
