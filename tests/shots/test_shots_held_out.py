"""Trainings on few records, and their comparison on held-out queries."""

import json
import random
from pathlib import Path

import pytest
import torch

from eligo.cli import main
from eligo.shots.config import SelectorTrainConfig
from eligo.shots.inference.embed import embed_query
from eligo.shots.inference.encoders import WordsEncoder
from eligo.shots.inference.predict import load_pipeline
from eligo.shots.training.held_out import _outcome
from eligo.shots.training.train import counted_steps

PLACES = {"ball": "on top shelf", "cube": "under old table", "cone": "behind green door",
          "ring": "inside my drawer", "star": "near broken window"}  # fmt: skip


@pytest.fixture
def call(tmp_path: Path, monkeypatch, capsys):
    """Run a command in a folder of its own; return its JSON and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(words: str):
        assert main(["shots", *words.split(), "--json"]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), err

    return call


def question(draw: random.Random, thing: str) -> str:
    """A thing among random words, which the nearest examples share."""
    words = [f"w{draw.randrange(12)}", f"w{draw.randrange(12)}", thing]
    draw.shuffle(words)
    return " ".join(words)


def taught(call, count: int) -> None:
    draw = random.Random(0)
    things = [draw.choice(list(PLACES)) for _ in range(count)]
    lines = [
        {"id": f"t{n}", "input": question(draw, thing), "output": PLACES[thing]}
        for n, thing in enumerate(things)
    ]
    Path("shots.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    call("embed --data shots.jsonl")
    call("teach --shots 1 --sampler.num_candidates 12")


def right_picks(folder: Path) -> float:
    """Share of new questions whose first pick is about the same thing."""
    pipeline, draw = load_pipeline(folder), random.Random(1)
    pool, encoder, right = pipeline.selector.pool, WordsEncoder(), 0
    for number in range(60):
        thing = draw.choice(list(PLACES))
        query = embed_query(encoder, f"new {number}", question(draw, thing), None)
        names = pipeline.sampler.names(query)
        [pick] = pool.picked(pipeline.selector.select(query, 1, candidates=names))
        right += pool.payload[int(pool.rows([pick])[0])]["answer"] == PLACES[thing]
    return right / 60


def test_default_training_learns_from_few_records(call):
    taught(call, 60)
    short, _ = call("train taught --train.min_steps 1 --num_epochs 1 --train.name short")
    fitted, _ = call("train taught")
    assert (short["last_step"], fitted["last_step"]) == (1, 300)
    found = fitted["held_out"]
    assert found["trained"] > found["untrained"] == short["held_out"]["untrained"]
    assert found["changed"] > 0
    assert found["outcome"] != "no better"
    assert right_picks(Path("runs/shots_v1")) >= right_picks(Path("runs/short")) + 0.1


def test_training_without_effect_warns(call):
    taught(call, 30)
    fitted, err = call("train taught --train.min_steps 1 --num_epochs 1 --model.hidden_dim 32")
    assert fitted["held_out"]["outcome"] == "no better"
    assert "this selector is no better than an untrained one" in err
    assert "--train.min_steps" in err
    for command in ("predict --question ball --shots 1", "evaluate --taught taught"):
        _, err = call(command)
        assert "runs/shots_v1: on 3 held-out queries this selector is no better" in err


def test_run_without_held_out_comparison_gives_no_warning(call):
    taught(call, 30)
    call("train taught --train.min_steps 1 --num_epochs 1 --model.hidden_dim 32")
    path = Path("runs/shots_v1/selector/pipeline.json")
    about = json.loads(path.read_text())
    del about["held_out"]
    path.write_text(json.dumps(about))
    _, err = call("predict --question ball --shots 1")
    assert "no better" not in err


def test_number_of_training_steps():
    config = SelectorTrainConfig()
    many = {"total_steps": 1540, "evaluate_every": 77, "checkpoint_every": 77}
    assert counted_steps(config, 77) == many
    few = {"total_steps": 300, "evaluate_every": 15, "checkpoint_every": 15, "patience": None}
    assert counted_steps(config, 1) == few
    assert counted_steps(config, 15)["total_steps"] == 300
    assert "patience" not in counted_steps(config, 15)


def test_outcomes_of_the_comparison():
    def judged(mine: list[float], start: list[float], near: list[float], changed: int = 1):
        rows = {"trained": mine, "untrained": start, "nearest": near}
        return _outcome({name: torch.tensor(row) for name, row in rows.items()}, changed)

    assert judged([1.0] * 20, [0.5] * 20, [0.5] * 20) == ("better", None)
    assert judged([1.0, 0.5, 1.0], [0.5, 0.5, 0.5], [0.0] * 3) == ("unclear", "an untrained one")
    assert judged([1.0] * 3, [0.5] * 3, [1.0] * 3) == ("no better", "the nearest examples")
    assert judged([0.5] * 3, [1.0] * 3, [0.0] * 3)[0] == "no better"
    assert judged([1.0] * 3, [0.5] * 3, [0.5] * 3, changed=0)[0] == "no better"
