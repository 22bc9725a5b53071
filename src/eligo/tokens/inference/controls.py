"""Controls of an evaluation: how many answers are right without the image, or with another one.

A model that reads its image is well above all of them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from eligo.errors import InputError
from eligo.tokens.data.examples import FileExamples
from eligo.tokens.inference.evaluate import WHOLE, answer_questions
from eligo.vqa import VqaExample, fit_usual_answers, usual_answer, vqa_accuracy

NO_IMAGE, OTHER_IMAGE, QUESTION_ONLY = "no image", "other image", "question only"
"""The unpruned model without an image, or with that of another question; the usual answer."""


def answer_controls(
    model: nn.Module,
    processor: Any,
    rows: Sequence[VqaExample],
    train: Sequence[VqaExample] = (),
    *,
    batch_size: int,
    max_new_tokens: int = 10,
    instruction: str = "",
    on_progress: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Return the VQA accuracy of each answer, by control.

    `QUESTION_ONLY` is fitted on `train` and left out without it.
    """
    found: dict[str, list[float]] = {}
    swapped = with_other_images(rows)
    for number, (name, asked) in enumerate(((NO_IMAGE, rows), (OTHER_IMAGE, swapped))):

        def report(done: int, before: int = number * len(rows)) -> None:
            on_progress(before + done)

        answers = answer_questions(
            model, processor, FileExamples(asked), {WHOLE: None},
            batch_size=batch_size, max_new_tokens=max_new_tokens, instruction=instruction,
            with_images=name != NO_IMAGE, with_cost=False, on_progress=report,
        )  # fmt: skip
        found[name] = answers.accuracy[WHOLE]
    if train:
        usual = fit_usual_answers((r.question, r.kind, usual_answer(r.answers)) for r in train)
        found[QUESTION_ONLY] = [vqa_accuracy(usual(r.question, r.kind), r.answers) for r in rows]
    return found


def with_other_images(rows: Sequence[VqaExample], seed: int = 0) -> list[VqaExample]:
    """Return the questions, all those on an image moved to the same other image.

    >>> rows = [VqaExample("1", Path("a.jpg"), "is it red?", ("yes",)),
    ...         VqaExample("2", Path("b.jpg"), "is it big?", ("no",))]
    >>> [str(row.image) for row in with_other_images(rows)]
    ['b.jpg', 'a.jpg']
    """
    images: list[Path] = list(dict.fromkeys(row.image for row in rows))
    if len(images) < 2:
        raise InputError("controls: all questions are on one image; expected two images or more")
    random.Random(seed).shuffle(images)
    other = dict(zip(images, [*images[1:], images[0]], strict=True))
    return [replace(row, image=other[row.image]) for row in rows]
