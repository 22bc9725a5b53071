"""Rows of JSON files that users made, checked by pydantic models.

Every problem is an `InputError` of one form: `path:line: field: got ..., expected ...`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from eligo.errors import InputError
from eligo.io.reading import json_lines

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_too_short": "text that is not empty",
    "model_type": "a JSON object",
    "too_short": "at least one entry",
}


class JsonRow(BaseModel):
    """Base of all rows: values are not converted, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)


RowT = TypeVar("RowT", bound=JsonRow)


def _digits(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("expected at least one word")
    return text


TextOrNumber = Annotated[str, BeforeValidator(_digits)]
"""Text; a whole number is read as its digits."""
Words = Annotated[str, AfterValidator(_words)]
"""Text that is not blank."""


def read_json_lines(
    path: str | Path, model: type[RowT], *, unique: str | None = None
) -> Iterator[tuple[int, RowT]]:
    """Yield the line number and the checked row of every line that is not blank.

    No two rows may have the same value in the field `unique`; where a row has None, its line number
    counts.
    """
    seen: dict[str, int] = {}
    for number, fields in json_lines(path):
        row = check_row(model, fields, f"{path}:{number}")
        if unique is not None:
            value = getattr(row, unique)
            name = str(number if value is None else value)
            if name in seen:
                raise InputError(
                    f"{path}:{number}: {unique}: got {name!r}, which line {seen[name]} has too; "
                    f"expected every {unique} once"
                )
            seen[name] = number
        yield number, row


def check_row(model: type[RowT], fields: Any, where: str | Path) -> RowT:
    """Return the row that parsed JSON describes; `where` begins the message of an error."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{where}: {_message(error, model)}") from None


def _message(error: ValidationError, model: type[JsonRow]) -> str:
    first = error.errors(include_url=False)[0]
    kind, given, message = first["type"], first["input"], first["msg"]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    field = "".join(parts).removeprefix(".")
    if kind == "missing":
        return f"{field}: missing; got only {', '.join(given) or 'an empty object'}"
    if kind == "extra_forbidden":
        return f"{field}: got an unknown field, expected some of {', '.join(model.model_fields)}"
    expected = _EXPECTED.get(kind) or message.removeprefix("Input should be ")
    if kind == "value_error":
        expected = message.removeprefix("Value error, expected ")
    return f"{field}: got {given!r:.80}, expected {expected}".removeprefix(": ")
