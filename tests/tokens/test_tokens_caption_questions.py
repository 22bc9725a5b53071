"""Questions made from captions."""

import json
from collections import Counter
from pathlib import Path

import pytest

from eligo.captions import CaptionedImage
from eligo.cli import main
from eligo.tokens.data.caption_questions import blind_accuracy, make_questions

THINGS = ("dog", "cat", "car", "boat", "horse", "guitar")


def image(number: int, *captions: str) -> CaptionedImage:
    return CaptionedImage(number, Path(f"{number}.jpg"), captions, ())


def asked(*captions: str) -> set[tuple[str, str]]:
    """Return colour and count questions on one image."""
    return {(question.text, question.answer) for question in make_questions([image(0, *captions)])}


def test_existence_is_balanced_for_every_noun():
    images = [image(n, f"a {THINGS[n % 6]} here", f"one {THINGS[n % 6]}") for n in range(60)]
    questions = [q for q in make_questions(images) if q.family == "exist"]
    answers = Counter((question.text, question.answer) for question in questions)
    assert {text for text, _ in answers} == {
        f"is there a {thing} in the picture?" for thing in THINGS
    }
    assert set(answers.values()) == {10}
    for question in questions:
        thing = question.text.split()[3]
        assert (question.answer == "yes") == (thing in question.image.captions[0])
    assert blind_accuracy(questions, questions)["exist"] == 0.5


def test_no_is_never_asked_of_what_is_implied_or_named_once():
    dogs = [image(n, "a dog runs", "a dog plays") for n in range(20)]
    others = [
        image(20, "a puppy sleeps", "an animal"), image(21, "two hounds", "pets"),
        image(22, "a boat", "a dog perhaps"), image(23, "an empty street", "a road"),
    ]  # fmt: skip
    no = [q for q in make_questions(dogs + others) if "a dog" in q.text and q.answer == "no"]
    assert [question.image.index for question in no] == [23]


@pytest.mark.parametrize(
    ("captions", "expected"),
    [
        (("a man in a red shirt", "a man"), {("what colour is the shirt?", "red")}),
        (("a red shirt", "a blue shirt"), set()),
        (("a black and white dog",), set()),
        (("a brown dog and other dogs",), set()),
        (("a grey car",), {("what colour is the car?", "gray")}),
        (("two dogs", "two big brown dogs"), {("how many dogs are in the picture?", "two")}),
        (("two dogs", "three dogs", "two dogs"), set()),
        (("two dogs", "some dogs"), set()),
    ],
)
def test_colour_and_count(captions: tuple[str, ...], expected: set[tuple[str, str]]):
    assert asked(*captions) == expected


def test_one_is_as_frequent_as_two():
    images = [image(n, "two dogs", "two dogs run") for n in range(4)]
    images += [image(n, "a dog", "a dog runs") for n in range(4, 20)]
    counts = Counter(q.answer for q in make_questions(images) if q.family == "count")
    assert counts == {"two": 4, "one": 4}


def test_questions_are_a_function_of_the_seed():
    images = [image(n, f"a {THINGS[n % 6]} here", f"one {THINGS[n % 6]}") for n in range(60)]
    assert make_questions(images) == make_questions(images)
    assert make_questions(images) != make_questions(images, seed=1)


def test_command_writes_lines_that_the_readers_take(tmp_path: Path, capsys):
    from PIL import Image

    from eligo.vqa import read_vqa_lines

    rows = []
    for number in range(40):
        name, split = f"{number}.png", "val" if number % 4 == 0 else "train"
        Image.new("RGB", (4, 4)).save(tmp_path / name)
        raw = [f"a red {THINGS[number % 6]}", f"the {THINGS[number % 6]} is red"]
        rows.append({"filename": name, "split": split, "sentences": [{"raw": r} for r in raw]})
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps({"images": rows}))
    out = tmp_path / "questions.jsonl"
    assert main(["tokens", "questions", str(captions), "--out", str(out), "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["questions"]
    assert table[1]["split"] == "train" or table[0]["split"] == "train"
    for split in ("train", "val"):
        found = read_vqa_lines(out, split=split)
        row = next(row for row in table if row["split"] == split)
        assert len(found) == row["exist"] + row["colour"] + row["count"] > 0
        assert {example.kind for example in found} == {"exist", "colour"}


def test_captions_without_things_are_one_line(tmp_path: Path, capsys):
    captions = tmp_path / "captions.json"
    sentence = {"raw": "nothing much"}
    captions.write_text(
        json.dumps({"images": [{"filename": "a", "split": "train", "sentences": [sentence]}]})
    )
    assert main(["tokens", "questions", str(captions), "--out", str(tmp_path / "q")]) == 2
    assert "no caption names a thing" in capsys.readouterr().err
