"""A warning if no evaluation of a run was better than the first."""

import json
from pathlib import Path

import pytest

from eligo.train.log import no_improvement


@pytest.mark.parametrize(
    ("steps", "best", "expected"),
    [
        ((10, 20, 30), 10, True),
        ((10, 20, 30), 30, False),
        ((10, 20), 10, False),  # too few to say
        ((10,), 10, False),
        ((), None, False),
    ],
)
def test_best_first_evaluation_gives_a_warning(tmp_path: Path, steps, best, expected: bool):
    lines = [{"step": 1, "split": "train"}]
    lines += [{"step": step, "split": "validation"} for step in steps]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    warning = no_improvement(tmp_path, best)
    assert (warning is not None) == expected
    if warning is not None:
        assert f"the first of {len(steps)} evaluations, at step {best}" in warning


def test_run_without_metrics_gives_no_warning(tmp_path: Path):
    assert no_improvement(tmp_path, None) is None
