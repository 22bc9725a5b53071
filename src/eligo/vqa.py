"""Visual question answering: how answers are compared, and the files that people have.

Normalisation and accuracy follow the description published with the VQA challenge: lower case, no
periods except in decimals, number words as digits, no articles, missing apostrophes of contractions
restored, other punctuation a space (apostrophes and colons stay, a comma between digits goes); then
the mean over annotators left out of min(1, matches among the others / 3).

Departs from the challenge's own program, which is not copied, in three ways: both sides are always
normalised (the program leaves them alone where all annotators agree), curly apostrophes count as
straight ones, and fewer than four annotators are enough: see `vqa_accuracy`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import json_lines, read_json
from eligo.pretrained.chat import place_image

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}
_ARTICLES = {"a", "an", "the"}
_SPACED = re.compile(r"[;/\[\]\"{}()=+\\_\-><@`,?!]")  # what carries meaning (% $ & #) stays
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d)")
_NOT_DECIMAL = re.compile(r"\.(?!\d)|(?<=[^\s\d])\.")
_ENDINGS = {  # who can be followed by what
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
# Their bare forms are words of their own, so no apostrophe is missing.
_WORDS = {"its", "ill", "well", "hell", "shell", "id", "wed", "shed", "were", "whore"}


@dataclass(frozen=True)
class VqaExample:
    """A question on an image file, and what annotators answered."""

    id: str
    image: Path
    question: str
    answers: tuple[str, ...]
    """One per annotator; empty where nobody was asked (a test set)."""
    kind: str = ""
    """Whatever the file calls the kind of question: VQAv2's answer type, the scenes' kind."""


# ------------------------------------------------------------------ answers


def normalise_answer(answer: str) -> str:
    """An answer as it is compared.

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
    """Every way to forget an apostrophe, and the word that was meant."""
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


def vqa_accuracy(said: str, answers: Sequence[str]) -> float:
    """How right an answer is, 0 to 1: leave out each annotator in turn, and average
    min(1, others who said the same / 3).

    Where there are fewer than three others, all of them must agree; a single annotator is simply
    compared with.

    >>> round(vqa_accuracy("Two", ["2", "2", "2", *["three"] * 7]), 2)
    0.9
    """
    if not answers:
        raise InputError("nobody answered this question, so no answer can be judged")
    mine = normalise_answer(said)
    same = [normalise_answer(answer) == mine for answer in answers]
    others = len(same) - 1
    if others == 0:
        return float(same[0])
    needed, total = min(3, others), sum(same)
    return sum(min(1.0, (total - one) / needed) for one in same) / len(same)


def usual_answer(answers: Sequence[str]) -> str:
    """What most annotators said, normalised; of equals, the first."""
    if not answers:
        raise InputError("nobody answered this question, so there is no usual answer")
    return Counter(map(normalise_answer, answers)).most_common(1)[0][0]


# ------------------------------------------------------------------ files


def read_vqa(
    questions: str | Path, annotations: str | Path | None, images: str | Path
) -> list[VqaExample]:
    """The files of VQAv2 or OK-VQA: questions, annotations (None: a test set), image folder.

    An image is `COCO_<data_subtype>_<image_id, 12 digits>.jpg` (or .png), or bears the number
    alone; it lies in the folder, or in one in it that is called like the subtype.
    """
    questions, images = Path(questions), Path(images)
    document = _read_json(questions)
    subtype = str(document.get("data_subtype", ""))
    answers = {} if annotations is None else _read_annotations(Path(annotations))
    find = _image_finder(images, subtype)
    examples, seen = [], set()
    for where, row in _rows(document, "questions", questions):
        number = _field(row, "question_id", int, where)
        if number in seen:
            raise InputError(f"{where}: question_id: {number} occurs twice")
        seen.add(number)
        if annotations is not None and number not in answers:
            raise InputError(
                f"{where}: question_id: {number} has no annotation in {annotations}; "
                "are the two files of one split?"
            )
        said, kind = answers.get(number, ((), ""))
        image = find(_field(row, "image_id", int, where), where)
        examples.append(VqaExample(str(number), image, _question(row, where), said, kind))
    return examples


def read_vqa_lines(
    path: str | Path, images: str | Path | None = None, *, need_answers: bool = True
) -> list[VqaExample]:
    """One JSON document per line: `image, question, answers`, and `id` and `kind` if one likes.

    Image paths are relative to `images`, by default the folder of the file.
    """
    path = Path(path)
    folder = path.parent if images is None else Path(images)
    examples, seen = [], set()
    for number, row in json_lines(path):
        where = f"{path}:{number}"
        name = str(row.get("id", number))
        if name in seen:
            raise InputError(f"{where}: id: {name} occurs twice")
        seen.add(name)
        image = folder / _text(row, "image", where)
        if not image.is_file():
            raise InputError(f"{where}: image: there is no file {image}")
        asked = need_answers or "answers" in row
        answers = _field(row, "answers", list, where) if asked else []
        if (asked and not answers) or not all(isinstance(answer, str) for answer in answers):
            raise InputError(f"{where}: answers: got {answers!r:.80}, expected one text or more")
        kind = str(row.get("kind", ""))
        examples.append(VqaExample(name, image, _question(row, where), tuple(answers), kind))
    if not examples:
        raise InputError(f"{path}: holds no questions")
    return examples


def _read_annotations(path: Path) -> dict[int, tuple[tuple[str, ...], str]]:
    found = {}
    for where, row in _rows(_read_json(path), "annotations", path):
        answers = _field(row, "answers", list, where)
        if not answers:
            raise InputError(f"{where}: answers: got none, expected one or more")
        said = tuple(
            _field(answer, "answer", str, f"{where}.answers[{place}]")
            for place, answer in enumerate(answers)
        )
        found[_field(row, "question_id", int, where)] = (said, str(row.get("answer_type", "")))
    return found


def _image_finder(folder: Path, subtype: str):
    """From the number of an image to its file; the folder is listed once."""
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


def _read_json(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: got {_kind(document)}, expected a JSON object")
    return document


def _rows(document: dict[str, Any], name: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = _field(document, name, list, str(path))
    if not rows:
        raise InputError(f"{path}: {name}: holds none")
    for place, row in enumerate(rows):
        where = f"{path}: {name}[{place}]"
        if not isinstance(row, dict):
            raise InputError(f"{where}: got {_kind(row)}, expected an object")
        yield where, row


_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def _field(row: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        has = ", ".join(row) if isinstance(row, dict) else _kind(row)
        raise InputError(f"{where}: {name}: missing, expected {_KINDS[kind]} (there is: {has})")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{where}: {name}: got {value!r:.80}, expected {_KINDS[kind]}")
    return value


def _text(row: dict[str, Any], name: str, where: str) -> str:
    text = _field(row, name, str, where)
    if not text.strip():
        raise InputError(f"{where}: {name}: is empty")
    return text


def _question(row: dict[str, Any], where: str) -> str:
    """Without the `<image>` that stands for the example's image."""
    text = place_image(_text(row, "question", where), f"{where}: question")
    if not text.strip():
        raise InputError(f"{where}: question: holds {row['question']!r} and no words")
    return text


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), repr(value)[:80])
