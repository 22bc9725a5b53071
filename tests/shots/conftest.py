"""Makes the tiny hosts of the tokens tests importable here; runs commands of the family."""

import json
import sys
from pathlib import Path

import pytest

from eligo.cli import main

sys.path.append(str(Path(__file__).parents[1] / "tokens"))


@pytest.fixture
def call(tmp_path: Path, monkeypatch, capsys):
    """Run `eligo shots` in a folder of its own; return its JSON, or its error."""
    monkeypatch.chdir(tmp_path)

    def call(words: str, *more: str, code: int = 0):
        result = main(["shots", *words.split(), *more])
        out, err = capsys.readouterr()
        assert result == code, err
        return json.loads(out) if code == 0 else err

    return call
