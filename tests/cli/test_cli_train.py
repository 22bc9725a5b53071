"""The shared `train` verb hands the built task and the settings to the loop."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import eligo.train
from eligo.cli.commands import COMMANDS, Command
from eligo.config import Config
from eligo.train import TrainConfig


class Toy(Config):
    task: str = "test_cli_train:Toy"
    train: TrainConfig = TrainConfig()

    def build(self) -> str:
        return "built"


class NoBuild(Config):
    task: str = "test_cli_train:NoBuild"


@dataclass
class Result:
    folder: Path
    resumed: bool


@pytest.fixture(autouse=True)
def train_command(monkeypatch):
    monkeypatch.setitem(COMMANDS, "sample train", Command("eligo.cli.train:run", "train"))


def test_train(run, monkeypatch):
    def fit(task, config, *, resume):
        assert task == "built"
        return Result(config.out / config.name, resume)

    monkeypatch.setattr(eligo.train, "fit", fit, raising=False)
    Path("toy.yaml").write_text("task: test_cli_train:Toy\ntrain: {name: first}\n")
    outcome = run("sample", "train", "toy.yaml", "--train.out", "there", "--resume", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {"folder": "there/first", "resumed": True}


def test_not_trainable(run):
    Path("toy.yaml").write_text("task: test_cli_train:NoBuild\n")
    outcome = run("sample", "train", "toy.yaml")
    assert outcome.code == 2
    assert "NoBuild cannot be trained: it needs a field train and a method build" in outcome.err
