"""The two streams: results go to stdout, everything said about the work goes to stderr."""

import json as json_module
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eligo.config import Config


def messages() -> Console:
    """Where progress and messages go."""
    return Console(stderr=True)


def results() -> Console:
    """Where results go."""
    return Console()


def say(text: str) -> None:
    """Plain words on stdout, never re-wrapped or coloured, so that they can be copied."""
    results().print(text, highlight=False, markup=False, soft_wrap=True)


def remark(text: str) -> None:
    """The same on stderr."""
    messages().print(text, highlight=False, markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    """One error, never re-wrapped, so that paths and keys can be copied."""
    messages().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def configure_logging() -> None:
    """Send what the library logs to stderr, as it is now (a second call replaces the first)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("eligo")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    if isinstance(sys.stdout, TextIOWrapper):  # a file name that is no UTF-8 ends no command
        sys.stdout.reconfigure(errors="backslashreplace")
    # Transformers draws bars of its own while it reads and writes weights. It looks here when it is
    # imported, and importing it to tell it so would cost seconds.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def print_result(result: Any, json: bool) -> None:
    """Print a result on stdout: one JSON document, or tables.

    A mapping is a table of names and values, a list of mappings a table of rows; a mapping of
    those becomes one titled table each.
    """
    plain = plain_data(result)
    if json:
        is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json_module.dumps(plain, indent=2, ensure_ascii=not is_utf8))
    else:
        results().print(_render(plain))


def print_outcome(result: Any, json: bool) -> None:
    """The result of a training, once, however many processes trained."""
    from accelerate import PartialState

    from eligo.train.outcome import learning_remark

    if PartialState().is_main_process:
        print_result(result, json)
        told = result if isinstance(result, Mapping) else vars(result)
        if said := learning_remark(Path(told["folder"]), told["best_step"]):
            remark(said)


def plain_data(value: Any) -> Any:
    """What JSON can hold: configs, dataclasses, paths and 0-d tensors made plain, NaN made null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return plain_data(asdict(value))
    if isinstance(value, Config):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(key): plain_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_data(inner) for inner in value]
    to_list = getattr(value, "tolist", None)  # tensors and arrays
    return plain_data(to_list()) if callable(to_list) else str(value)


def _render(plain: Any, title: str | None = None) -> RenderableType:
    if (
        isinstance(plain, dict)
        and plain
        and all(isinstance(v, dict | list) for v in plain.values())
    ):
        return Group(*(_render(value, name) for name, value in plain.items()))
    if isinstance(plain, dict):
        return _table([{"": key, " ": value} for key, value in plain.items()], title)
    if isinstance(plain, list) and plain and all(isinstance(row, dict) for row in plain):
        return _table(plain, title)
    return Text(f"{title}: {_cell(plain)}" if title else _cell(plain))


def _table(rows: list[dict[str, Any]], title: str | None) -> Table:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    named = any(column.strip() for column in columns)
    table = Table(title=title, title_justify="left", show_header=named)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    return table


def compact_table(title: str, caption: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table that 80 columns hold: columns of names, then columns of numbers."""
    table = Table(
        title=title, caption=caption, title_justify="left", caption_justify="left",
        box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False,
    )  # fmt: skip
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items()) or "none"
    return str(value)
