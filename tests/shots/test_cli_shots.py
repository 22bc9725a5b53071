"""The command line of the family."""

import json

import pytest

from eligo.cli import main


def test_bench(monkeypatch, capsys):
    for name, size in (("BATCH", 4), ("BEAMS", 2), ("RERANKED", 8)):
        monkeypatch.setattr(f"benchmarks.shots.training_speed.{name}", size)
    assert main(["shots", "bench", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"v1_closed_form, loss", "v1_closed_form, step", "v3_pairwise, step"}
    assert main(["shots", "bench", "--suite", "rerank", "--rounds", "1"]) == 0
    assert "speedup" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "0"], "--rounds: got 0"),
        (["--candidates", "10"], "--candidates: got 10, expected at least"),
        (["--suite", "no"], "--suite"),
        (["--device", "abacus"], "device: got 'abacus'"),
    ],
)
def test_bench_refuses_what_cannot_be(flags: list[str], message: str, capsys):
    assert main(["shots", "bench", *flags]) == 2
    assert message in capsys.readouterr().err
