"""What is to be said about a training when it has ended. Imports no torch."""

import json
from pathlib import Path

_LEAST = 3  # evaluations from which on the best of them means something


def learning_remark(folder: Path, best_step: int | None) -> str | None:
    """A line if no evaluation of a run was better than its first one; else None."""
    steps = [line["step"] for line in _lines(folder) if line.get("split") == "validation"]
    if len(steps) < _LEAST or best_step != steps[0]:
        return None
    return (
        f"{folder}: the first of {len(steps)} evaluations, at step {best_step}, is the best: what "
        "was trained after it made nothing better; look at metrics.jsonl there, and try another "
        "learning rate, or more data"
    )


def _lines(folder: Path) -> list[dict]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
