"""Arguments with any bytes and of any length give one line of error and exit code 2."""

import os
from pathlib import Path

import pytest

import eligo
from eligo.cli import main


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def refused(*args: str) -> str:
        assert main(args) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return refused


def test_undecodable_bytes_are_refused(refused):
    assert "argument 2: got 'a\\x00b', expected UTF-8 text" in refused("explore", "a\0b")
    assert "argument 3: got '\\udcff'" in refused("demo", "--out", "\udcff")


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 3000, "a" * 300 + "/b"])
def test_too_long_paths_are_refused(refused, name):
    assert "File name too long" in refused("explore", name)
    assert "File name too long" in refused("search", name)


def test_pipes_and_circular_links_are_refused(refused):
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    for command in (
        ("explore", "pipe"),
        ("pixels", "convert", "pipe", "--out", "out"),
        ("shots", "embed", "--data", "pipe", "--out", "out"),
        ("pixels", "train", "scenes", "--train.init_from", "pipe"),
        ("search", "pipe"),
    ):
        assert "is a pipe, socket or device; expected a" in refused(*command)
    refused("explore", "loop")
    refused("search", "loop")


def test_numbers_too_large_for_a_tensor_are_refused(refused):
    assert "--k: got a whole number of 31 digits" in refused(
        "patches", "search", "i", "a", "--k", "1" + "0" * 30
    )
    assert "--target: got nan, expected a finite" in refused("tokens", "plan", "--target", "nan")


def test_empty_config_name_is_refused(refused):
    assert "'': neither a file nor a shipped config" in refused("patches", "train", "")


def test_path_without_permission_is_refused(refused, monkeypatch):
    def closed() -> None:
        raise PermissionError(13, "Permission denied", "runs/closed")

    monkeypatch.setattr("eligo.cli.explorer.explore.run", closed)
    assert "runs/closed: Permission denied" in refused("explore")


def test_unexpected_error_keeps_its_traceback(monkeypatch):
    def missing() -> None:
        raise FileNotFoundError(2, "No such file", f"{Path(eligo.__file__).parent}/gone.yaml")

    monkeypatch.setattr("eligo.cli.explorer.explore.run", missing)
    with pytest.raises(FileNotFoundError):
        main(["explore"])


def test_out_of_memory_is_one_line(monkeypatch, capsys):
    def full() -> None:
        raise MemoryError

    monkeypatch.setattr("eligo.cli.explorer.explore.run", full)
    assert main(["explore"]) == 1
    assert capsys.readouterr().err.startswith("error: not enough memory")
