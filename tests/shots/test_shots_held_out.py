"""Trainings on few records, and their comparison on held-out queries."""

import json
import random
from pathlib import Path

import pytest
import torch

from eligo.cli import main
from eligo.shots import (
    KNN,
    FitConfig,
    LearnedSelector,
    PointerSelector,
    Pool,
    Query,
    Record,
    read_taught,
)
from eligo.shots.config import RecordsConfig, SelectorTrainConfig
from eligo.shots.data.records import encode_record
from eligo.shots.inference.embed import embed_query
from eligo.shots.inference.encoders import WordsEncoder
from eligo.shots.inference.predict import load_pipeline
from eligo.shots.training import held_out
from eligo.shots.training.task import counted_steps

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


def taught(call, count: int, sampler: str = "random") -> None:
    draw = random.Random(0)
    things = [draw.choice(list(PLACES)) for _ in range(count)]
    lines = [
        {"id": f"t{n}", "input": question(draw, thing), "output": PLACES[thing]}
        for n, thing in enumerate(things)
    ]
    Path("shots.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    call("embed --data shots.jsonl")
    call(f"teach --shots 1 --sampler.num_candidates 12 --sampler.kind {sampler}")


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
    taught(call, 200)
    short, _ = call("train taught --train.min_steps 1 --num_epochs 1 --lr 1e-9 --train.name short")
    fitted, _ = call("train taught")
    assert (short["last_step"], fitted["last_step"]) == (2, 300)
    found = fitted["held_out"]
    assert found["trained"] > found["untrained"] == short["held_out"]["untrained"]
    assert found["changed"] > 0
    assert found["outcome"] != "no better"
    assert right_picks(Path("runs/shots_v3_scores")) >= right_picks(Path("runs/short")) + 0.1


def test_training_without_effect_warns(call):
    taught(call, 30)
    fitted, err = call("train taught --train.min_steps 1 --num_epochs 1 --lr 1e-9")
    assert fitted["held_out"]["outcome"] == "no better"
    assert "on 3 held-out queries the learned selector is no better than" in err
    assert "--train.min_steps" in err
    for command in ("predict --question ball --shots 1", "evaluate --taught taught"):
        _, err = call(command)
        assert (
            "runs/shots_v3_scores: on 3 held-out queries the learned selector is no better" in err
        )


def test_result_that_is_no_better_keeps_the_simple_selector(call):
    """It is the last thing that is said, and what `predict` then uses."""
    taught(call, 30, "nearest")
    flags = "--train.min_steps 1 --num_epochs 1 --lr 1e-9"
    fitted, err = call(f"train taught {flags}")
    found = fitted["held_out"]
    assert (found["outcome"], found["changed"]) == ("no better", 0)
    assert found["trained"] == found["untrained"] == found["nearest"]
    last = err.strip().splitlines()[-1]
    assert last.endswith(f"the simple selector {found['kept']} is kept instead")
    pipeline = load_pipeline("runs/shots_v3_scores")
    assert found["kept"] == "nearest"
    query = embed_query(WordsEncoder(), "new", "w1 ball w2", None)
    names = pipeline.sampler.names(query)
    expected = KNN().fit([], pipeline.selector.pool).select(query, 3)
    assert torch.equal(pipeline.selector.select(query, 3, candidates=names).indices,
                       expected.indices)  # fmt: skip

    selector = LearnedSelector(fit=FitConfig(num_epochs=1, min_steps=1, lr=1e-9))
    selector.fit(*read_taught("taught"))
    assert selector.held_out.kept == "nearest"
    assert torch.equal(selector.select(query, 3).indices, expected.indices)


def test_fit_and_train_have_the_same_defaults_and_result(call):
    shared = FitConfig.model_fields.keys() & SelectorTrainConfig.model_fields.keys()
    assert shared >= {"num_epochs", "min_steps", "batch_size", "lr", "weight_decay", "patience"}
    for name in shared:
        assert getattr(FitConfig(), name) == getattr(SelectorTrainConfig(), name), name
    assert FitConfig().validation == RecordsConfig().validation
    taught(call, 60)
    call("train taught --train.min_steps 40")
    selector = LearnedSelector(fit=FitConfig(min_steps=40)).fit(*read_taught("taught"))
    trained = PointerSelector.from_pretrained("runs/shots_v3_scores/best")
    if selector.held_out.kept == "learned":
        for name, tensor in trained.state_dict().items():
            assert torch.equal(selector.model.state_dict()[name], tensor)
    found = json.loads(Path("runs/shots_v3_scores/selector/pipeline.json").read_text())["held_out"]
    assert found["trained"] == selector.held_out.trained


def test_worth_of_picks_against_a_loop():
    """Nearest neighbours and MMR choose after the teacher's picks, by their definition."""
    draw = torch.Generator().manual_seed(0)
    pool = Pool([f"e{n}" for n in range(9)], torch.randn(9, 6, generator=draw))
    records = []
    for n in range(12):
        names = [pool.ids[i] for i in torch.randperm(9, generator=draw)[: 5 + n % 3]]
        scores = torch.rand(3, len(names), generator=draw)
        query = Query(f"q{n}", torch.randn(6, generator=draw))
        records.append(Record(query, names[:3], names, step_scores=scores))
    encoded = [encode_record(record, pool, 6) for record in records]
    for balance in (0.3, 1.0):
        found = held_out._worth_of_mmr(encoded, pool, balance)
        for record, value in zip(records, found, strict=True):
            rows = pool.vectors[pool.rows(record.candidates)]
            total = 0.0
            for step in range(3):
                before = list(record.picks[:step])
                best = max(
                    (i for i, name in enumerate(record.candidates) if name not in before),
                    key=lambda i: (
                        balance * float(rows[i] @ record.query.vector)
                        - (1 - balance)
                        * max(
                            [float(rows[i] @ pool.vectors[pool.rows([b])[0]]) for b in before]
                            or [0]
                        )
                    ),
                )
                total += float(record.step_scores[step, best]) / 3
            assert float(value) == pytest.approx(total, abs=1e-6)


def test_run_without_held_out_comparison_gives_no_warning(call):
    taught(call, 30)
    call("train taught --train.min_steps 1 --num_epochs 1 --model.hidden_dim 32")
    path = Path("runs/shots_v3_scores/selector/pipeline.json")
    about = json.loads(path.read_text())
    del about["held_out"]
    path.write_text(json.dumps(about))
    _, err = call("predict --question ball --shots 1")
    assert "no better" not in err


def test_number_of_training_steps():
    config = SelectorTrainConfig()
    many = {"total_steps": 1540, "evaluate_every": 77, "checkpoint_every": 77}
    assert counted_steps(config, 20, 77) == many
    few = {"total_steps": 300, "evaluate_every": 15, "checkpoint_every": 15, "patience": None}
    assert counted_steps(config, 20, 1) == few
    assert counted_steps(config, 20, 15)["total_steps"] == 300
    assert "patience" not in counted_steps(config, 20, 15)
    assert counted_steps(FitConfig(), 20, 77) == many


def test_outcomes_of_the_comparison():
    def judged(mine, start, near, changed: int = 1, diverse: list[float] | None = None):
        rows = {"trained": mine, "untrained": start, "nearest": near}
        rows["mmr"] = near if diverse is None else diverse
        return held_out._outcome({name: torch.tensor(row) for name, row in rows.items()}, changed)

    assert judged([1.0] * 20, [0.5] * 20, [0.5] * 20) == ("better", None)
    assert judged([1.0, 0.5, 1.0], [0.5, 0.5, 0.5], [0.0] * 3) == ("unclear", "an untrained one")
    assert judged([1.0] * 3, [0.5] * 3, [1.0] * 3) == ("no better", "the nearest examples")
    assert judged([1.0] * 3, [0.5] * 3, [0.5] * 3, diverse=[1.0] * 3) == ("no better", "MMR")
    assert judged([0.5] * 3, [1.0] * 3, [0.0] * 3)[0] == "no better"
    assert judged([1.0] * 3, [0.5] * 3, [0.5] * 3, changed=0)[0] == "no better"
