"""Answers to questions on files: read ahead by workers, images shared, the same as one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from photo_parts import make_all

from eligo.errors import InputError
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.plan_cost import trace_schedules
from eligo.tokens.data import examples
from eligo.tokens.data.examples import Collator, FileExamples
from eligo.tokens.hooks.prompt import locate_images, scan_prompt
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts import Capture
from eligo.tokens.inference.evaluate import answer_questions, generate_answers
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import build
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.train import data
from eligo.vqa import VqaExample, read_vqa_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("answers"), photos=36)


@pytest.fixture(scope="module")
def host(folder: Path) -> tuple[Any, Any]:
    model, processor = load_host(HostConfig(model=str(folder / "host")))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return model, processor


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[VqaExample]:
    return read_vqa_lines(folder / "photos" / "questions.jsonl", folder / "photos" / "images")


PLANS = {
    "none": None,
    "visionzip": Plan(Stage1(build("visionzip"), 6)),
    "both": Plan(Stage1(build("tome"), 8), [Cut(1, build("fastv"), 3)]),
}


@pytest.mark.parametrize("workers", [0, 2])
def test_answers_equal_those_of_single_questions(host, rows, monkeypatch, workers: int):
    monkeypatch.setattr(data, "default_workers", lambda: workers)
    model, processor = host
    done: list[int] = []
    found = answer_questions(
        model, processor, FileExamples(rows), PLANS, batch_size=23, on_progress=done.append
    )
    assert done == [23, 46, 69, 72]
    assert [question.id for question in found.questions] == [row.id for row in rows]
    for index in range(0, len(rows), 5):
        batch = Collator(processor)([FileExamples(rows)[index]])
        for name, plan in PLANS.items():
            with torch.no_grad(), pruning(model, plan or Plan()):
                (expected,) = generate_answers(model, processor, batch, 4)
            assert found.text[name][index] == expected
    assert len(set(found.text["none"])) > 1


def test_questions_on_an_image_share_its_pixels(host, rows, monkeypatch):
    opened: list[Path] = []
    real = examples.open_image
    monkeypatch.setattr(examples, "open_image", lambda p, s: (opened.append(p), real(p, s))[1])
    _, processor = host
    files = FileExamples(rows)
    asked = files.__getitems__([0, 1, 2, 4, 5])
    assert len(opened) == 3
    shared, plain = Collator(processor)(asked, share_images=True), Collator(processor)(asked)
    assert shared.image_rows is not None
    assert shared.image_rows.tolist() == [0, 0, 1, 2, 2]
    assert len(shared.inputs["pixel_values"]) == 3
    assert plain.image_rows is None
    moved = shared.to("cpu")
    assert moved.image_rows is None
    for name, value in plain.inputs.items():
        assert moved.inputs[name].equal(value)


def test_images_that_differ_are_not_shared(host, rows):
    files = FileExamples(rows)
    batch = Collator(host[1])([files[0], files[2]], share_images=True)
    assert batch.image_rows is None
    assert len(batch.inputs["pixel_values"]) == 2


def test_an_unreadable_image_is_named(host, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "default_workers", lambda: 2)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    asked = [*rows, VqaExample("x", broken, "is there a ball?", ("yes",))]
    with pytest.raises(InputError, match=r"broken\.png"):
        answer_questions(*host, FileExamples(asked), {"none": None}, batch_size=30)


class Counted(torch.Tensor):
    """Counts how often its length is read."""

    reads = 0

    def __len__(self) -> int:
        Counted.reads += 1
        return self.shape[0]


def test_images_are_located_in_time_linear_in_their_number():
    batch = 50
    ids = torch.tensor([[7, 9, 9, 8]]).expand(batch, -1)
    scan = scan_prompt(ids, 9, None, None, 4)
    tokens = [torch.zeros(2, 4).as_subclass(Counted) for _ in range(batch)]
    Counted.reads = 0
    prompt = locate_images(scan, Capture(tokens, tokens, [(1, 2)] * batch))
    assert prompt.counts == [2] * batch
    assert Counted.reads <= 4 * batch


def test_schedules_of_equal_rows_are_counted_once_each(host, rows):
    """Rows keep their own padding and budgets."""
    model, processor = host
    batch = Collator(processor)([FileExamples(rows)[index] for index in range(4)])
    with torch.no_grad(), pruning(model, PLANS["both"]) as trace:
        model(**batch.inputs)
    found = trace_schedules(trace, 3, batch.inputs["attention_mask"])
    words = batch.num_text.tolist()
    assert [(s.vision, s.merged, s.cuts, s.text) for s in found] == [
        (16, 8, ((1, 3),), count) for count in words
    ]
    assert len(set(words)) == 2
