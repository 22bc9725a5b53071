"""Printed output: plain data, JSON, tables, errors and logs."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from eligo.cli.console import configure_logging, plain_data, print_error, print_result
from eligo.config import Config


@dataclass
class Result:
    path: Path
    score: torch.Tensor


class Small(Config):
    size: int = 3


def test_plain_data_of_configs_and_results():
    value = {"r": Result(Path("a/b"), torch.tensor(0.5)), "nan": float("nan"), 1: {True, None}}
    assert plain_data(value) == {
        "r": {"path": "a/b", "score": 0.5},
        "nan": None,
        "1": plain_data({True, None}),
    }
    assert plain_data([Small(), torch.arange(2)]) == [{"size": 3}, [0, 1]]


def test_json_is_one_document_on_stdout(capsys):
    print_result({"loss": float("inf"), "name": "é [bold]"}, json=True)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"loss": None, "name": "é [bold]"}, "")


def test_tables_are_printed(capsys):
    print_result({"rows": [{"name": "[red]", "score": 0.123456}], "all": {"n": 3}}, json=False)
    out, _ = capsys.readouterr()
    for word in ("rows", "name", "[red]", "0.1235", "all", "n", "3"):
        assert word in out


def test_errors_are_not_wrapped(capsys):
    print_error("x" * 300)
    assert capsys.readouterr().err == f"error: {'x' * 300}\n"


def test_logs_go_to_stderr_once(capsys):
    configure_logging()
    configure_logging()
    logging.getLogger("eligo.some.module").info("hello")
    assert capsys.readouterr() == ("", "hello\n")
