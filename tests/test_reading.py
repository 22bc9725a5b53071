"""Reading of untrusted text and JSON: within limits, or an error with position and reason."""

import json
import os
import re

import pytest

from eligo.errors import InputError
from eligo.io.json_lines import JsonRow, TextOrNumber, Words, read_json_lines
from eligo.io.reading import json_lines, parse_json, read_json, read_text, reading


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, expected in (
        ("pipe", "is a pipe, socket or device; expected a file"),
        ("loop", "cannot be opened"),
        (".", "is a folder; expected a file"),
        ("none", "there is no such file"),
        ("x" * 5000, "cannot be opened"),
        ("a\0b", "cannot be opened"),
        ("\ud800", "cannot be opened"),
    ):
        with pytest.raises(InputError, match=expected):
            read_text(f"{tmp_path}/{name}")


def test_text_errors_name_the_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntw\xff")
    with pytest.raises(InputError, match=r"text:2: cannot be read as UTF-8 text; save it as UTF-8"):
        read_text(path)
    path.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(InputError, match="it looks like UTF-16"):
        read_text(path)
    with pytest.raises(InputError, match="got 10 bytes, expected at most 9"):
        read_text(path, most_bytes=9)
    path.write_bytes(b"\xef\xbb\xbfmarked")
    assert read_text(path) == "marked"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" * 100_000, "nested deeper than 100 levels"),
        ("[" * 500 + "]" * 500, "nested deeper than 100 levels"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested deeper than 100 levels"),
        ("9" * 5000, "not valid JSON: Exceeds the limit"),
        ('{"a": "\\ud800"}', "half of a character"),
        ('\n  {"a" 1}', r"a\.json:2:8: not valid JSON: Expecting ':' delimiter"),
        ("", r"a\.json:1:1: not valid JSON"),
    ],
)
def test_invalid_json_is_refused(tmp_path, text, expected):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


def test_valid_json_is_read(tmp_path):
    assert parse_json("[" * 100 + "]" * 100, "a")
    assert parse_json('"\\ud83d\\ude00"', "a") == "\U0001f600"
    assert parse_json('{"a": 1, "a": 2}', "a") == {"a": 2}
    with pytest.raises(InputError, match="'a' comes twice in one object"):
        parse_json('{"a": 1, "a": 2}', "a", unique_keys=True)


def test_json_lines_must_be_objects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": "\u2028"}\n', encoding="utf-8")
    assert list(json_lines(path)) == [(1, {"a": 1}), (3, {"a": "\u2028"})]
    path.write_text('{"a": 1}\n[2]\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: got '\[2\]', expected a JSON object"):
        list(json_lines(path))
    path.write_text('{"a": 1}\n{"a": 1\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2:8: not valid JSON"):
        list(json_lines(path))


class Row(JsonRow):
    id: TextOrNumber | None = None
    text: Words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 3}', "a.jsonl:2: text: missing; got only id"),
        ("{}", "a.jsonl:2: text: missing; got only an empty object"),
        ('{"text": 3}', "a.jsonl:2: text: got 3, expected text"),
        ('{"text": " "}', "a.jsonl:2: text: got ' ', expected at least one word"),
        ('{"text": "a", "id": true}', "a.jsonl:2: id: got True, expected text"),
        ('{"text": "a", "id": 7}', "a.jsonl:2: id: got '7', which line 1 has too; expected every"),
        ("[2]", "a.jsonl:2: got '[2]', expected a JSON object"),
    ],
)
def test_invalid_rows_are_refused_with_line_and_field(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": 7, "text": "a", "more": [1]}}\n{line}\n')
    with pytest.raises(InputError, match=re.escape(message)):
        list(read_json_lines(path, Row, unique="id"))


def test_valid_rows_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 7, "text": "a"}\n\n{"text": "b"}\n')
    rows = list(read_json_lines(path, Row, unique="id"))
    assert rows == [(1, Row(id="7", text="a")), (3, Row(text="b"))]
    path.write_text('{"id": "2", "text": "a"}\n{"text": "b"}\n')
    with pytest.raises(InputError, match="2: id: got '2'"):  # a row without an id: its line number
        list(read_json_lines(path, Row, unique="id"))


@pytest.mark.parametrize("document", [None, 3, [], {}, {"step": "x"}, {"step": [1]}, {"step": {}}])
def test_errors_inside_reading_name_the_file(document):
    with (
        pytest.raises(InputError, match=r"^state\.json: cannot be read \(.*\); expected a step$"),
        reading("state.json", "a step"),
    ):
        int(document["step"])


def test_input_errors_pass_through_reading():
    with pytest.raises(InputError, match=r"^a\.json: step: got 3$"), reading("a.json", "x"):
        raise InputError("a.json: step: got 3")
    with pytest.raises(InputError, match=r"^a\.json: got 3$"), reading("a.json", "x"):
        raise InputError("got 3")
    with reading("a.json", "x"):
        json.loads("1")
