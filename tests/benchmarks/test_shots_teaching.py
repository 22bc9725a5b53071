"""`python -m benchmarks.shots.teaching`: a quick run with a tiny host."""

import json
from pathlib import Path

from benchmarks.shots import teaching
from eligo.cli import run_script


def test_quick_run(tmp_path: Path, capsys):
    out = tmp_path / "teaching.json"
    assert run_script(teaching.run, ["--quick", "--device", "cpu", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert found["teach"]["prompts"] == 6 * 7
    assert found["answer lists"]["prompts"] == found["score lists"]["prompts"] == 6 * 4
    assert all(found[name]["prompts per second"] > 0 for name in ("teach", "score lists"))
    assert {"date", "hardware", "command", "versions"} <= set(found)
