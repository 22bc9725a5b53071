"""`data.questions_per_image` on files: several questions share an image in every step."""

import logging
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from photo_parts import make_all
from torch import Tensor

from eligo.config import load_config
from eligo.scenes.config import SceneConfig
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.data import examples
from eligo.tokens.data.examples import FileExamples, SceneExamples
from eligo.tokens.data.file_source import can_share_images
from eligo.tokens.training.batch import HostBatch
from eligo.tokens.training.objective import answers, observe, text_mask
from eligo.tokens.training.task import TokensTask
from eligo.train import Progress, fit
from worker_cases import WORKERS, assert_same_batches, assert_same_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_all(tmp_path_factory.mktemp("shared"), layers=5)


def config_of(photos: Path, **changes: Any) -> TokensTrainConfig:
    lines = photos / "photos" / "questions.jsonl"
    sizes = {
        "host.model": str(photos / "host"), "host.dtype": "float32",
        "data.images": photos / "photos" / "images", "data.num_workers": 0,
        "data.train_lines": lines, "data.validation_lines": lines, "data.validation": 6,
        "data.questions_per_image": 2,
        "train.batch_size": 6, "train.total_steps": 4, "train.precision": "no",
        "train.evaluate_every": 3, "train.checkpoint_every": 3, "train.log_every": 1,
        "merger.budget": 8, "merger.dim": 8, "pruners.layers": [2], "pruners.budgets": [4],
        "pruners.dim": 8, "scales": [1.0],
    }  # fmt: skip
    return load_config(TokensTrainConfig, "tokens/photos", sizes | changes)


def task_of(photos: Path, **changes: Any) -> TokensTask:
    task = TokensTask(config_of(photos, **changes))
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)  # outputs depend on the input
    return task


def batches_of(task: TokensTask, start: int, count: int) -> list[HostBatch]:
    return list(islice(task.batches(start, 0, 1, CPU), count))


def test_rows_equal_those_of_single_questions(photos: Path, monkeypatch):
    """Tokens, masks and pixels are those of the same questions, each with an image of its own."""
    task = task_of(photos)
    groups: list[Any] = []
    collate = task.source._collate_images
    monkeypatch.setattr(task.source, "_collate_images", lambda g: (groups.append(g), collate(g))[1])
    (batch,) = batches_of(task, 0, 1)
    rows = [row for group in groups[0] for row in group]
    assert len({id(row.image) for row in rows}) == 3
    assert len({(id(row.image), row.question) for row in rows}) == 6
    single = task.source._collate(rows)
    assert batch.inputs.keys() == single.inputs.keys()
    for name, value in single.inputs.items():
        torch.testing.assert_close(batch.inputs[name], value)
    for name in ("question_mask", "labels", "after_image"):
        assert getattr(batch, name).equal(getattr(single, name))
    assert (batch.rows_per_image, single.rows_per_image) == (2, 1)


def test_an_image_is_opened_once_for_its_questions(photos: Path, monkeypatch):
    opened: list[Path] = []
    real = examples.open_image
    monkeypatch.setattr(examples, "open_image", lambda p, s: (opened.append(p), real(p, s))[1])
    batches_of(task_of(photos), 0, 1)
    assert len(opened) == len(set(opened)) == 3


def test_an_image_with_fewer_questions_repeats_them(photos: Path):
    (batch,) = batches_of(task_of(photos, **{"data.questions_per_image": 3}), 0, 1)
    assert batch.rows_per_image == 3
    texts = [tuple(row.tolist()) for row in batch.inputs["input_ids"]]
    assert [len(set(texts[first : first + 3])) for first in (0, 3)] == [2, 2]


@pytest.mark.parametrize(("size", "wanted", "found"), [(6, 4, 2), (4, 4, 4), (5, 4, 1)])
def test_a_batch_that_is_no_multiple_has_fewer_questions_per_image(
    photos: Path, size: int, wanted: int, found: int
):
    changes = {"train.batch_size": size, "data.questions_per_image": wanted}
    (batch,) = batches_of(task_of(photos, **changes), 0, 1)
    assert (len(batch.labels), batch.rows_per_image) == (size, found)


def test_batches_are_a_function_of_the_step(photos: Path):
    plain = batches_of(task_of(photos), 0, 7)
    for workers in WORKERS[1:]:
        task = task_of(photos, **{"data.num_workers": workers})
        assert_same_batches(batches_of(task, 2, 5), plain[2:])


def test_a_resumed_run_equals_the_unbroken_one(photos: Path, tmp_path: Path):
    whole, parts = (
        config_of(photos, **{"train.out": tmp_path, "train.name": name}) for name in ("a", "b")
    )
    expected = fit(TokensTask(whole), whole.train)
    assert fit(TokensTask(parts), parts.train, on_evaluate=lambda *_: True).last_step == 3
    found = fit(TokensTask(parts), parts.train, resume=True)
    assert_same_weights(found.folder / "last", expected.folder / "last")


def apart(batch: HostBatch) -> HostBatch:
    return replace(batch, packed=None, rows_per_image=1)


def test_the_packed_teacher_equals_separate_rows(photos: Path):
    task = task_of(photos)
    (batch,) = batches_of(task, 0, 1)
    assert batch.packed is not None
    assert len(batch.packed.inputs["pixel_values"]) == 3
    packed, single = task.observe_whole(batch), task.observe_whole(apart(batch))
    is_answer, mask = answers(batch) != -100, text_mask(batch)
    close = {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(packed.logits[is_answer], single.logits[is_answer], **close)
    torch.testing.assert_close(packed.states[:, mask], single.states[:, mask], **close)
    torch.testing.assert_close(packed.attention, single.attention, **close)
    with torch.no_grad():
        plain = observe(task.model, task.watched, apart(batch), nullcontext())
    torch.testing.assert_close(packed.logits[is_answer], plain.logits[is_answer], **close)


def test_a_step_has_the_losses_of_separate_rows(photos: Path):
    def losses(batch: HostBatch) -> dict[str, Tensor]:
        torch.manual_seed(0)
        return task.step(batch, Progress(3, 4)).losses

    task = task_of(photos)
    (batch,) = batches_of(task, 0, 1)
    found, expected = losses(batch), losses(apart(batch))
    assert {"task", "kl", "hidden", "attention"} <= set(found)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_rows_with_other_words_before_the_image_are_not_packed(photos: Path):
    """The image itself is still shared."""
    task = task_of(photos)
    words = (
        "{% for c in messages[0]['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}"
    )
    task.processor.chat_template = words + "<image> answer :"
    (batch,) = batches_of(task, 0, 1)
    assert batch.rows_per_image == 2
    assert batch.head is None
    assert batch.packed is None
    found, expected = task.observe_whole(batch), task.observe_whole(apart(batch))
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-4, rtol=1e-4)


def test_only_files_of_a_llava_share_images(photos: Path, caplog, monkeypatch):
    task = task_of(photos)
    assert can_share_images(task.processor, task.source.train)
    assert not can_share_images(task.processor, SceneExamples(SceneConfig(), "train", 2))

    class Other:
        image_processor = task.processor.image_processor

    assert isinstance(task.source.train, FileExamples)
    assert not can_share_images(Other(), task.source.train)
    monkeypatch.setattr("eligo.tokens.training.task.can_share_images", lambda *_: False)
    with caplog.at_level(logging.WARNING, logger="eligo"):
        task = task_of(photos)
    assert "data.questions_per_image has no effect: only a LLaVA" in caplog.text
    assert batches_of(task, 0, 1)[0].rows_per_image == 1


@pytest.mark.gpu
def test_a_gpu_trains_on_shared_images(photos: Path, tmp_path: Path):
    config = config_of(photos, **{"train.out": tmp_path, "train.name": "gpu"})
    assert fit(TokensTask(config), config.train).last_step == 4
