"""The study of plans for serving engines runs; what it writes can be shipped and exported."""

import json
from pathlib import Path

import pytest

from benchmarks.tokens import serving
from eligo.cli import run_script
from eligo.tokens.plan import Plan
from test_shipped_models import problems


def test_the_study_writes_plans_with_cards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run_script(serving.run, ["--quick", "--seeds", "0", "--out", str(tmp_path)])
    out = tmp_path / "quick"
    document = json.loads((out / "serving.json").read_text())
    variants = {row["variant"] for row in document["variants"]}
    assert {"none", "blind", *serving.PLANS, "tome, reindex", "tome, original"} < variants
    assert not any(name.startswith("visionzip") for name in variants)  # needs the tower's attention
    for name, positions in (("tokens_reindex", "reindex"), ("tokens_folding", "original")):
        plan = Plan.load(out / "plans" / name)
        assert plan.positions == positions
        assert not plan.size_bias
        assert problems((out / "plans" / name / "README.md").read_text()) == []
    assert (out / "plans.tar.gz").is_file()
    capsys.readouterr()
    assert not run_script(serving.run, ["--show", str(out / "serving.json")])
    assert "| tokens_folding |" in capsys.readouterr().out
