"""`python -m benchmarks.tokens.graphs` on a narrow random model; no test compares times."""

import json
from pathlib import Path

import pytest

from benchmarks.tokens.graphs import question_lengths, run, targets_of
from eligo.cli import run_script


def test_the_command_writes_every_row(tmp_path: Path) -> None:
    out = tmp_path / "graphs.json"
    assert not run_script(run, ["--quick", "--device", "cpu", "--out", str(out)])
    document = json.loads(out.read_text())
    assert {"date", "hardware", "command", "versions"} <= document.keys()
    names = ["stock", "unpruned, graphs", "pruned", "pruned, graphs"]
    assert [(row["batch"], row["variant"]) for row in document["rows"]] == [
        (size, name) for size in (1, 2) for name in names
    ]
    for row in document["rows"]:
        assert row["forward_ms"] > 0
        assert row["answer_ms"] > 0
        assert row["share_of_limit"] > 0
        assert ("selector_ms" in row) == row["variant"].startswith("pruned")
    assert document["replays"][0]["questions"] == 8
    assert document["replays"][0]["share"] == 0  # a CPU records nothing
    assert [row["bound"] for row in document["targets"]] == [1.5, 1.6, 2.0, 1.0, 0.04]


def test_limits_are_those_of_the_work(tmp_path: Path) -> None:
    """If reading takes no time, only fewer tokens lower the limit; graphs do not."""
    out = tmp_path / "graphs.json"
    flags = ["--quick", "--device", "cpu", "--terabytes", "1e9", "--out", str(out)]
    assert not run_script(run, flags)
    rows = json.loads(out.read_text())["rows"]
    stock, full, pruned, both = (row["limit_ms"] for row in rows[:4])
    assert stock == full > pruned == both


def test_no_row_begins_after_the_time(tmp_path: Path) -> None:
    out = tmp_path / "graphs.json"
    flags = ["--quick", "--device", "cpu", "--seconds", "0", "--out", str(out)]
    assert not run_script(run, flags)
    document = json.loads(out.read_text())
    assert document["skipped"] == ["narrow"]
    assert document["rows"] == []


def test_targets_by_hand() -> None:
    def row(first: float, token: float, share: float = 0.01) -> dict[str, float]:
        return {"first_ms": first, "token_ms": token, "answer_ms": first + 31 * token,
                "selector_ms": 1, "forward_ms": first, "selector_share": share}  # fmt: skip

    rows = {"stock": row(32, 22), "unpruned, graphs": row(20, 4), "pruned, graphs": row(10, 4)}
    found = targets_of(rows, 1)
    assert [one.value for one in found[:2]] == [2.0, 3.2]
    assert all(one.met for one in found)
    rows["pruned, graphs"] = row(19, 5, 0.05)
    assert [one.met for one in targets_of(rows, 1)] == [False, True, True, False, False]
    assert [one.name for one in targets_of(rows, 32)] == []


def test_lengths_of_questions(tmp_path: Path) -> None:
    given = tmp_path / "lengths.json"
    given.write_text("[40, 50]")
    assert question_lengths(given, 3) == [40, 50]
    made = question_lengths(None, 500)
    assert len(made) == 500
    assert min(made) >= 42
    assert max(made) <= 100


def test_unknown_shapes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script(run, ["--shapes", "huge"]) == 2
    assert "--shapes: got ['huge']" in " ".join(capsys.readouterr().err.split())
