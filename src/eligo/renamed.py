"""Names that were renamed or moved out of the package, for error messages.

Old names do not work any more; the error says what to write instead.
"""

import re
from typing import Literal

Kind = Literal["command", "config", "model", "name", "task"]


def _in_repository(module: str) -> str:
    return f"`python -m benchmarks.{module}` (in the repository, not installed)"


_LEFT_THE_PACKAGE = {
    "patches bench": _in_repository("patches.speed"),
    "patches exam": _in_repository("patches.study"),
    "pixels bench": _in_repository("pixels.speed"),
    "pixels exam": _in_repository("pixels.study"),
    "scenes evaluate-vlm": _in_repository("scenes.evaluate_vlm"),
    "scenes stats": _in_repository("scenes.stats"),
    "scenes train-vlm": _in_repository("scenes.train_vlm"),
    "shots bench": _in_repository("shots.speed"),
    "shots exam": _in_repository("shots.study"),
    "shots train-learner": _in_repository("shots.train_learner"),
    "tokens exam": _in_repository("tokens.study"),
}
_SHOTS_MODELS = ("learner", "v0", "v1", "v1_gate", "v2_gru", "v3")

RENAMED: dict[Kind, dict[str, str]] = {
    "command": _LEFT_THE_PACKAGE,
    "config": {"tokens/guide": "tokens/two_stage"},
    "model": {f"demos_{name}": f"shots_{name}" for name in _SHOTS_MODELS},
    "name": {"eligo.demos": "eligo.shots"},
    "task": {name.replace(" ", "."): new for name, new in _LEFT_THE_PACKAGE.items()},
}
"""What to write instead of an old name, by kind."""


def new_name(kind: Kind, old: str) -> str | None:
    """Return what to write instead of an old name; None for any other name.

    >>> new_name("model", "demos_v1")
    'shots_v1'
    >>> new_name("command", "demos teach")
    '`eligo shots teach`'
    """
    table = RENAMED[kind]
    if old in table:
        return table[old]
    if kind in ("model", "name") or not re.match(r"demos\b", old):
        return None
    new = "shots" + old.removeprefix("demos")
    return table.get(new, f"`eligo {new}`" if kind == "command" else new)
