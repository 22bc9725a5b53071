"""Worker processes: the same batches, resumed runs and evaluations for any number of them."""

from itertools import islice
from pathlib import Path

import pytest
import torch
from photo_parts import make_language, make_photos, make_tower
from tiny_task import TINY

from eligo.cli import main
from eligo.config import load_config
from eligo.scenes.config import SceneConfig
from eligo.scenes.export import ExportConfig, export_scenes
from eligo.tokens.config import FinetuneConfig, TokensTrainConfig
from eligo.tokens.training.finetune import FinetuneTask
from eligo.tokens.training.task import TokensTask
from eligo.train import fit
from worker_cases import WORKERS, assert_same_batches, assert_same_weights, sent

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("vqa") / "vqa"
    scenes = SceneConfig(height=56, width=56)
    counts = {"train": 11, "validation": 5, "test": 0, "questions": 2, "captions": 0}
    export_scenes(ExportConfig(format="vqa", scenes=scenes, **counts), out)
    return out


def config_of(vqa: Path, workers: int | None, out: Path | None = None, name: str = "run"):
    data = {"kind": "vqa", "folder": vqa, "num_workers": workers, "validation": 7}
    own = {"data": data, "train.name": name, "train.total_steps": 8, "train.evaluate_every": 6,
           "train.checkpoint_every": 6}  # fmt: skip
    rest = {key: value for key, value in TINY.items() if not key.startswith("data.")}
    place = {} if out is None else {"train.out": out}
    return load_config(TokensTrainConfig, None, rest | own | place)


def test_batches_are_equal_for_any_number_of_workers(vqa: Path):
    def batches(workers: int, start: int, count: int) -> list:
        return list(islice(TokensTask(config_of(vqa, workers)).batches(start, 0, 1, CPU), count))

    plain = batches(0, 0, 7)
    for workers in WORKERS[1:]:
        assert_same_batches(batches(workers, 3, 4), plain[3:])  # an epoch has 5 steps


def test_evaluated_questions_are_equal_for_any_number_of_workers(vqa: Path):
    plain, *others = (
        list(TokensTask(config_of(vqa, workers)).source.validation(3, CPU)) for workers in WORKERS
    )
    assert [len(batch.labels) for batch in plain] == [3, 3, 1]
    for found in others:
        assert_same_batches(found, plain)


def test_examples_are_sent_to_workers(vqa: Path):
    source = TokensTask(config_of(vqa, 0)).source
    copy = sent((source.train, source._collate))
    examples = [source.train[index] for index in range(3)]
    again = [copy[0][index] for index in range(3)]
    assert_same_batches([copy[1](again)], [source._collate(examples)])


def test_run_resumed_with_other_workers_equals_the_uninterrupted_one(vqa: Path, tmp_path: Path):
    """An epoch has 5 steps, so step 6 is inside one."""
    whole = config_of(vqa, 0, tmp_path, "whole")
    expected = fit(TokensTask(whole), whole.train)
    first, second = (config_of(vqa, workers, tmp_path, "parts") for workers in (3, 1))
    assert fit(TokensTask(first), first.train, on_evaluate=lambda *_: True).last_step == 6
    found = fit(TokensTask(second), second.train, resume=True)
    assert found.last_step == 8
    assert found.best == expected.best
    assert_same_weights(found.folder / "last", expected.folder / "last")


# ------------------------------------------------------------------ finetuning on photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    tower, language = make_tower("dinov2", folder / "tower"), make_language(folder / "language")
    flags = ["--tower", str(tower), "--language", str(language), "--out", str(folder / "base")]
    assert main(["tokens", "build", *flags, "--json"]) == 0
    make_photos(folder / "photos")
    return folder


def finetuning(photos: Path, out: Path, name: str, workers: int | None) -> FinetuneConfig:
    """18 photos for training, with two captions each, of which one is drawn."""
    data = {"images": photos / "photos" / "images", "num_workers": workers, "cache_gb": 0,
            "questions": photos / "photos" / "questions.jsonl",
            "captions": photos / "photos" / "captions.json"}  # fmt: skip
    config = FinetuneConfig(
        host={"model": str(photos / "base")}, data=data, lora={"rank": 4}, epochs=None
    )
    return config.replace({
        "train.out": out, "train.name": name, "train.batch_size": 6, "train.total_steps": 5,
        "train.evaluate_every": 4, "train.checkpoint_every": 4,
    })  # fmt: skip


def test_drawn_captions_are_equal_for_any_number_of_workers(photos: Path, tmp_path: Path):
    def batches(workers: int, start: int, count: int) -> list:
        task = FinetuneTask(finetuning(photos, tmp_path, "run", workers))
        return list(islice(task.batches(start, 0, 1, CPU), count))

    plain = batches(0, 0, 6)
    for workers in WORKERS[1:]:
        assert_same_batches(batches(workers, 2, 4), plain[2:])  # an epoch has 3 steps


def test_finetuning_resumed_with_other_workers_equals_the_uninterrupted_one(
    photos: Path, tmp_path: Path
):
    whole = finetuning(photos, tmp_path, "whole", 0)
    expected = fit(FinetuneTask(whole), whole.train)
    first, second = (finetuning(photos, tmp_path, "parts", workers) for workers in (3, 1))
    assert fit(FinetuneTask(first), first.train, on_evaluate=lambda *_: True).last_step == 4
    found = fit(FinetuneTask(second), second.train, resume=True)
    assert found.last_step == 5
    assert found.best == expected.best
    assert_same_weights(found.folder / "last", expected.folder / "last")
