"""`eligo shots evaluate`: every row against a loop, the file per query, and a table that fits."""

import json
from pathlib import Path

import pytest
import torch
from teach_cases import WORDS

from eligo.cli import main
from eligo.errors import InputError
from eligo.shots import BM25, DPP, KNN, MMR, Random
from eligo.shots.inference.embed import open_embedded
from eligo.shots.inference.evaluate import answering
from eligo.shots.inference.load import load_pipeline
from eligo.shots.teacher.overlap import OverlapScorer


@pytest.fixture
def world(tmp_path: Path, monkeypatch, capsys):
    """Examples, and new queries of which two share a group each."""
    monkeypatch.chdir(tmp_path)
    for name, count, start in (("shots", 40, 0), ("new", 12, 100)):
        lines = [
            {"id": f"{name}{n}", "input": f"where is the {WORDS[n % 6]} {start + n}?",
             "output": f"at place {n % 6}", "group": f"{name}{n // 2}"}
            for n in range(count)
        ]  # fmt: skip
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["shots", "embed", "--data", "shots.jsonl", "--queries", "new.jsonl"]) == 0
    capsys.readouterr()
    return tmp_path


def test_rows_against_a_loop(world: Path):
    pool, queries, _ = open_embedded(Path("embedded"))
    pipeline = load_pipeline("dpp", "embedded")
    found = answering(pipeline, queries, [3, 1, 1], {"model": None})
    scorer = OverlapScorer(pool, queries)
    simple = {"random": Random(), "nearest": KNN(), "mmr": MMR(balance=0.5), "dpp": DPP(),
              "bm25": BM25(), "selector": DPP()}  # fmt: skip
    keys = [("none", 0), *((name, count) for count in (1, 3) for name in simple)]
    assert list(found.lists) == keys
    for (name, count), lists in found.lists.items():
        for query, names in zip(queries.queries(), lists, strict=True):
            if not count:
                assert names == []
                continue
            selector = simple[name].fit([], pool)
            assert names == pool.picked(selector.select(query, count))  # of the whole pool
    table = found.tables()["log-probability"]
    for row in table:
        key = (row["examples"], row["shots"])
        values = [
            float(scorer.score_lists(query, [names]).logprob[0])
            for query, names in zip(queries.queries(), found.lists[key], strict=True)
        ]
        assert row["mean"] == pytest.approx(sum(values) / 12, abs=1e-6)
        assert row["from"] - 1e-9 <= row["mean"] <= row["to"] + 1e-9
        if key[0] == "selector":
            assert "lead" not in row
        else:
            own = found.logprobs["selector", key[1] or 1]
            lead = sum(own) / 12 - sum(values) / 12
            assert row["lead"] == pytest.approx(lead, abs=1e-6)
            assert row["lead from"] - 1e-9 <= lead <= row["lead to"] + 1e-9
    assert "accuracy" not in found.tables()  # no host


def test_intervals_resample_whole_groups(world: Path):
    """Queries of one group are one draw: twelve equal pairs have a wider interval."""
    _, queries, _ = open_embedded(Path("embedded"))
    pipeline = load_pipeline("knn", "embedded")
    grouped = answering(pipeline, queries, [1], {"model": None})
    alone = type(queries)(queries.ids, queries.views, payload=queries.payload)
    single = answering(pipeline, alone, [1], {"model": None})
    widths = [
        found.tables()["log-probability"][1]["to"] - found.tables()["log-probability"][1]["from"]
        for found in (grouped, single)
    ]
    assert all(torch.tensor(widths).isfinite())
    assert widths[0] != widths[1]


def test_command_writes_a_line_per_query_and_fits_80_columns(world: Path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = "shots evaluate --selector mmr --embedded embedded --data embedded --shots 1 4"
    assert main([*words.split(), "--per_query", "lines.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    assert "score 12/12" in err
    for name in ("none", "random", "nearest", "mmr", "dpp", "bm25", "selector"):
        assert name in out
    lines = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert len(lines) == 12 * (1 + 2 * 6)
    assert lines[0] == {**lines[0], "id": "new0", "examples": "none", "shots": 0, "picks": []}
    assert {len(line["picks"]) for line in lines if line["examples"] == "nearest"} == {1, 4}
    assert all(isinstance(line["logprob"], float) for line in lines)


def test_numbers_of_shots_and_flags_are_checked_first(world: Path, capsys, monkeypatch):
    words = "shots evaluate --selector mmr --embedded embedded"
    monkeypatch.setattr("eligo.shots.inference.evaluate.score_lists", None)
    for more, message in (
        ("--data embedded --shots 0", "--shots: got 0, expected at least 1"),
        ("--taught x --per_query y", "--per_query goes with --data"),
        ("--data embedded --per_query embedded", "embedded"),
    ):
        assert main([*words.split(), *more.split()]) == 2
        assert message in capsys.readouterr().err
    _, queries, _ = open_embedded(Path("embedded"))
    with pytest.raises(InputError, match="shots: got no number"):
        answering(load_pipeline("knn", "embedded"), queries, [], {"model": None})
