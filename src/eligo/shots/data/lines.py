"""JSON lines, read so that a bad one is named: path, line, field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.reading import json_lines


class Line:
    """One object of a file, which knows where it stands."""

    def __init__(self, path: Path, number: int, fields: dict[str, Any]) -> None:
        self.path, self.number, self.fields = path, number, fields

    def text(self, field: str) -> str:
        """A field that must be there and be text (a whole number counts as its digits)."""
        value = self.fields.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise self.problem(field, f"got {_shown(self.fields, field)}, expected text")
        return value

    def maybe_text(self, field: str) -> str | None:
        """A field that may be missing or null."""
        return None if self.fields.get(field) is None else self.text(field)

    def problem(self, field: str, what: str) -> InputError:
        """An error that says where."""
        return InputError(f"{self.path}:{self.number}: {field}: {what}")


def read_lines(path: str | Path) -> Iterator[Line]:
    """Every object of a file; empty lines are passed over."""
    path = Path(path)
    for number, fields in json_lines(path):
        yield Line(path, number, fields)


def unique_ids(lines: Iterator[Line], field: str = "id") -> Iterator[Line]:
    """The same lines; an id that comes again is an error that names both."""
    seen: dict[str, int] = {}
    for line in lines:
        name = line.text(field)
        if name in seen:
            raise line.problem(field, f"{name!r} stood in line {seen[name]} already")
        seen[name] = line.number
        yield line


def _shown(fields: dict[str, Any], field: str) -> str:
    return f"{fields[field]!r:.60}" if field in fields else f"only {', '.join(fields) or 'nothing'}"
