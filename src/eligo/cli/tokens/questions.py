"""`eligo tokens questions`: questions from a file of captions."""

import json as json_format
from pathlib import Path
from typing import Annotated

import tyro

from eligo.cli.console import OutFile, print_result, print_text
from eligo.errors import InputError
from eligo.io.files import write_text

Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CAPTIONS")]


def run(captions: Source, *, out: OutFile, seed: int = 0, json: bool = False) -> None:
    """Make questions on existence, colour and number from captions, for every split.

    Prints how often the question alone gives the answer away: the accuracy of the usual answer to
    the same question in the training split.

    Args:
        captions: Captions in Karpathy's form: a JSON file with filenames, splits and sentences.
        out: The file to write: JSON lines with id, image, split, family, question, answer.
        seed: Seed of the choice.
        json: Print one JSON document.
    """
    from eligo.captions import read_karpathy
    from eligo.tokens.data.caption_questions import FAMILIES, blind_accuracy, make_questions

    by_split = read_karpathy(captions, Path())
    made = {split: make_questions(images, seed=seed) for split, images in by_split.items()}
    rows = [
        {
            "id": f"{split}_{number}",
            "image": str(question.image.path),
            "split": split,
            "family": question.family,
            "question": question.text,
            "answer": question.answer,
        }
        for split, questions in made.items()
        for number, question in enumerate(questions)
    ]
    if not rows:
        raise InputError(f"{captions}: no caption names a thing that can be asked about")
    write_text(out, "".join(json_format.dumps(row) + "\n" for row in rows))
    table = []
    for split, images in by_split.items():
        questions = made[split]
        row: dict[str, object] = {"split": split, "images": len(images)}
        is_train = split == "train"
        blind = {} if is_train else blind_accuracy(made.get("train", []), questions)
        for name in FAMILIES:
            row[name] = sum(question.family == name for question in questions)
            row[f"{name} blind"] = f"{100 * blind[name]:.1f} %" if name in blind else ""
        table.append(row)
    if json:
        print_result({"questions": table, "file": out}, json)
    else:
        print_result(table, json)
        print_text(f"written: {out}")
