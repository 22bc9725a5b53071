"""Questions and answers of users: text lines, VQA lines, the files of VQAv2.

Questions on one image are one group: they are never examples for each other.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import json_lines
from eligo.shots.data.pickles import refuse_pickle
from eligo.shots.data.text import read_texts
from eligo.vqa import VqaExample, read_vqa, read_vqa_lines, usual_answer


@dataclass(frozen=True)
class Item:
    """A question, its answers, and the image that it is about."""

    id: str
    question: str
    answers: tuple[str, ...]
    image: str | None = None
    group: str | None = None

    @property
    def answer(self) -> str:
        """The most frequent answer, normalised; a single answer as it was given; "" for none."""
        if len(self.answers) > 1:
            return usual_answer(self.answers)
        return self.answers[0] if self.answers else ""

    @property
    def payload(self) -> dict[str, Any]:
        """What a pool keeps, in the form that `Turn.of` reads."""
        kept: dict[str, Any] = {"question": self.question, "answer": self.answer}
        if len(self.answers) > 1:
            kept["answers"] = list(self.answers)
        return kept if self.image is None else {**kept, "image": self.image}


def read_items(
    path: str | Path,
    annotations: str | Path | None = None,
    images: str | Path | None = None,
    *,
    need_answers: bool = True,
) -> list[Item]:
    """Read JSON lines (`id, input, output` or `image, question, answers`), or VQAv2's two files.

    Without `need_answers`, questions on images may have none: lines without `answers`, VQAv2
    without annotations.
    """
    path = Path(path)
    refuse_pickle(path)
    if path.suffix == ".json":
        if images is None or (annotations is None and need_answers):
            raise InputError(
                f"{path}: questions of VQAv2 need --annotations (a .json file) and --images (the "
                "folder of images); your own data must be JSON lines, .jsonl"
            )
        return [_of_vqa(example) for example in read_vqa(path, annotations, images)]
    if annotations is not None:
        raise InputError(f"--annotations goes with questions of VQAv2 (.json), got {path}")
    _, first = next(json_lines(path), (0, None))
    if first is None:
        raise InputError(f"{path}: holds no line")
    if "input" in first:
        return [Item(t.id, t.input, (t.output,), None, t.group) for t in read_texts(path)]
    if "image" not in first:
        raise InputError(
            f"{path}:1: got {', '.join(first) or 'an empty object'}; expected id, input and output "
            "(examples of text), or image, question and answers"
        )
    return [_of_vqa(e) for e in read_vqa_lines(path, images, need_answers=need_answers)]


def image_group(path: str) -> str:
    """The group of all questions on an image file: its real path."""
    return os.path.realpath(path)


def answers_of(payload: Any) -> Sequence[str]:
    """The answers of all annotators; empty for a query without any."""
    return payload.get("answers") or [text for text in [payload["answer"]] if text.strip()]


def _of_vqa(example: VqaExample) -> Item:
    image = str(example.image)
    return Item(example.id, example.question, example.answers, image, image_group(image))
