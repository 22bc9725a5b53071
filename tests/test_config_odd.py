"""Invalid configs give one line with file and position, and correct suggestions."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from eligo.cli.registry import TASKS, resolve_task
from eligo.config import Config, load_config, read_layer, shipped_configs
from eligo.config.problems import nearest
from eligo.config.yaml import parse_value
from eligo.errors import ConfigError


class Files(Config):
    """One kind."""

    kind: Literal["files"] = "files"
    path: str = ""
    files: int = 0


class Scenes(Config):
    """Another kind."""

    kind: Literal["scenes"] = "scenes"
    scenes: int = 3


class Loop(Config):
    """A section."""

    steps: int = 1
    rate: float = 0.5


class Run(Config):
    """The whole."""

    name: str = "run"
    train: Loop = Loop()
    perhaps: Loop | None = None
    data: Annotated[Files | Scenes, Field(discriminator="kind")] = Scenes()
    table: dict[str, Any] = Field(default_factory=dict)


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The message for a file of this text, and flags."""
    monkeypatch.chdir(tmp_path)

    def refused(text: str | bytes, flags: dict[str, Any] | None = None) -> str:
        Path("run.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ConfigError) as caught:
            load_config(Run, "run.yaml", flags)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused


def _bomb(*, merge: bool) -> str:
    one = "{<<: [%s]}" if merge else "[%s]"
    first = "a0: &a0 {x: 1}\n"
    rows = (f"a{n + 1}: &a{n + 1} {one % ', '.join([f'*a{n}'] * 9)}\n" for n in range(12))
    return first + "".join(rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_bomb(merge=False), "more than 50000 values"),
        (_bomb(merge=True), "more than 50000 values"),
        ("x: &x [*x]\n", "run.yaml:1: an alias contains itself"),
        ("x: " + "[" * 10_000, "run.yaml:1: nested deeper than 50 levels"),
        ("x: " + "{a: " * 10_000, "run.yaml:1: nested deeper than 50 levels"),
        ("name: " + "9" * 5000, "run.yaml:1: got a number of 5000 digits"),
        ("name: a\ntrain: {steps: 99999999999999999999}\n", "run.yaml:2: train.steps: got a whole"),
        ("name: !!python/object/apply:os.getcwd []\n", "run.yaml:1: got the tag !!python/object"),
        ("name: !!binary aGk=\n", "run.yaml:1: got the tag !!binary"),
        ("name: !!set {a}\n", "got the tag !!set"),
        ("name: !!timestamp 2001-01-01\n", "got the tag !!timestamp"),
        ("name: !!omap [a: 1]\n", "got the tag !!omap"),
        ("name: !own x\n", "got the tag !own"),
        ("name: !!int x\n", "run.yaml:1: got 'x' with the tag !!int"),
        ("name: !!bool x\n", "run.yaml:1: got 'x' with the tag !!bool"),
        ("? [a, b]\n: c\n", "run.yaml:1: got a list or mapping as a key"),
        ("1: x\n", "run.yaml:1: got '1' as a key, expected a name"),
        ("null: x\n", "run.yaml:1: got 'null' as a key"),
        ("<<: 3\n", "run.yaml:1:5: not valid YAML"),
        ("name: a\n---\nname: b\n", "run.yaml:2:1: not valid YAML: expected a single document"),
        ("\tname: a\n", "run.yaml:1:1: not valid YAML"),
        ("name: a\n\0\n", "run.yaml:2: not valid YAML: it holds the control character U+0000"),
        ('name: "a\\0b"\n', "run.yaml:1: name: got 'a\\x00b', expected text without NUL"),
        ('name: "\\ud800"\n', "expected text without NUL and in whole Unicode characters"),
        ("name: a".encode("utf-16"), "run.yaml:1: cannot be read as UTF-8 text"),
        ("name: a\nname: b\n", "run.yaml:2: name: written twice, first on line 1"),
        ("train: {rate: .nan}\n", "run.yaml:1: train.rate: got nan, expected a finite number"),
        ("train: {rate: 1e999}\n", "run.yaml:1: train.rate: got inf, expected a finite number"),
        ("table: {a: [1, .inf]}\n", "run.yaml:1: table.a.1: got inf"),
        ("extends: [a]\n", "run.yaml:1: extends: got ['a'], expected one path"),
        ("extends: run.yaml\n", "extends: goes in a circle"),
        ("extends: ''\n", "run.yaml:1: extends: '': neither a file nor a shipped config"),
        ("extends: none.yaml\n", "none.yaml: no such config file"),
        (f"extends: {'x' * 5000}\n", "cannot be opened (File name too long)"),
        (b"# " + b"x" * (1 << 20), "expected at most 1,048,576; is it another file?"),
        (b"- 1\n" * 200_000, "more than 50000 values"),
    ],
)
def test_invalid_files_are_refused(refused, text, expected):
    message = refused(text)
    assert expected in message
    assert "did you mean run.yaml?" not in message


@pytest.mark.parametrize("value", ["5", "[1]", "text", "null", "true"])
@pytest.mark.parametrize("section", ["train", "data"])
def test_flag_does_not_hide_a_section_of_the_wrong_type(refused, section, value):
    for flags in ({}, {f"{section}.steps": 3}, {section: {"steps": 3}}):
        message = refused(f"name: a\n{section}: {value}\n", flags)
        assert f"run.yaml:2: {section}: got " in message
        assert ": expected" in message or ", expected a" in message


def test_flags_fill_sections_that_may_be_empty(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("perhaps:\n")
    assert load_config(Run, path, {"perhaps.steps": 3}).perhaps == Loop(steps=3)


def test_folders_and_pipes_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.yaml")
    Path("folder.yaml").mkdir()
    Path("loop.yaml").symlink_to("loop.yaml")
    for name, expected in (
        ("pipe.yaml", "is a pipe, socket or device; expected a YAML file"),
        ("folder.yaml", "is a folder; expected a YAML file"),
        ("loop.yaml", "no such config file"),
        ("x" * 5000 + ".yaml", "cannot be opened (File name too long)"),
        ("a\0b", "neither a file nor a shipped config"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(Run, name)
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[" * 10_000, "!!int x", "{a: 1, a: 2}", "9" * 5000, "&a [*a]", "a: b: c", "\0"]
)
def test_invalid_values_of_flags_are_refused(text):
    with pytest.raises(ValueError, match="which is not valid YAML"):
        parse_value(text)


def test_suggestion_is_never_the_given_word():
    assert nearest("desk", ["desk", "disk"]) == "disk"
    assert nearest("desk", ["desk"]) is None


def test_key_of_another_union_member_is_not_suggested(refused):
    assert "did you mean" not in refused("data: {kind: files, scenes: 4}\n")
    assert "did you mean" not in refused("data: {kind: scenes, files: 4}\n")
    assert "did you mean" not in refused("path: x\n")
    assert "did you mean data.path?" in refused("data: {kind: files}\npath: x\n")
    assert "did you mean data.path?" in refused("data: {kind: files, paht: x}\n")


def _typos(tree: Any, path: tuple[str, ...] = ()):
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*path, key), (*path, key[:-1] + "x" + key[-1])
        yield (*path, key), (key,)  # one level too high
        yield from _typos(value, (*path, key))


def _moved(tree: dict[str, Any], source: tuple[str, ...], target: tuple[str, ...]) -> dict:
    """A copy with a value moved to another path."""

    def copied(node: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(node, dict):
            return node
        return {k: copied(v, (*path, k)) for k, v in node.items() if (*path, k) != source}

    found, value = copied(tree, ()), tree
    for key in source:
        value = value[key]
    node = found
    for key in target[:-1]:
        node = node.setdefault(key, {})
    node[target[-1]] = value
    return found


def test_base_section_that_is_not_a_mapping_is_refused(refused):
    Path("base.yaml").write_text("name: a\ntrain: 5\n")
    Path("middle.yaml").write_text("extends: base.yaml\ntrain: {steps: 2}\n")
    for base in ("base", "middle"):
        message = refused(f"extends: {base}.yaml\ntrain: {{rate: 0.1}}\n")
        assert message.startswith("base.yaml:2: train: got 5, expected a mapping with the keys")
    Path("base.yaml").write_text("train: {steps: .inf}\nperhaps: null\n")
    assert "base.yaml:1" in refused("extends: base.yaml\ntrain: {steps: 2}\nperhaps: {steps: 1}\n")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}\n"])
def test_file_without_keys_is_refused(refused, text):
    assert refused(text).startswith("run.yaml: holds no keys, expected `key: value` lines")


def test_key_of_another_kind_names_that_kind(refused):
    message = "run.yaml:1: data.path: unknown key here; it belongs to data.kind files"
    assert refused("data: {path: x}\n") == message
    assert refused("data: {kind: scenes}\n", {"data.path": "x"}).startswith("--data.path: unknown")


def test_suggestions_for_a_missing_file_ignore_its_extension(refused):
    Path("empty.yaml").write_text("name: a\n")
    with pytest.raises(ConfigError, match=r"^nope\.yaml: no such config file$"):
        load_config(Run, "nope.yaml")
    with pytest.raises(ConfigError, match=r"did you mean empty\.yaml\?$"):
        load_config(Run, "emty.yaml")


@pytest.mark.parametrize("name", shipped_configs())
def test_every_suggested_key_is_accepted(name):
    layer = read_layer(name)
    if layer.tree.get("task") not in TASKS:
        pytest.skip("a config of no task")
    cls, proposed = resolve_task(layer.tree["task"]), 0
    tree = cls.translated(layer).tree
    tree.pop("search", None)
    for source, target in _typos(tree):
        if source == target or source == ("task",):
            continue
        spoilt = _moved(tree, source, target)
        message = _message(cls, spoilt)
        hint = re.search(r"^(\S+): unknown key; did you mean (\S+)\?$", message, re.M)
        if hint is None or hint[1] != ".".join(target):
            continue
        proposed += 1
        assert hint[2] != hint[1]
        mended = _moved(spoilt, target, tuple(hint[2].split(".")))
        assert f"{hint[2]}: unknown key" not in _message(cls, mended)
    assert proposed


def _message(cls: type[Config], tree: dict[str, Any]) -> str:
    try:
        load_config(cls, tree)
    except ConfigError as error:
        return str(error)
    return ""
