"""Output of commands: results go to stdout, messages to stderr, result files to `--out`."""

import json as json_module
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, get_args

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from eligo.config import Config
from eligo.errors import InputError
from eligo.io.files import check_file, check_folder, write_text

OutFile = Annotated[Path, "file"]
"""The type of an `--out` that names a file; any other `--out` names a folder."""
OutFolder = Annotated[Path, "folder"]
"""The type of another flag that names a folder to write to."""
OutFileOrFolder = Annotated[Path, "file or folder"]
"""The type of an `--out` that names either, depending on other flags; the command checks it."""
_LOG_COLUMNS = 100
_MAX_WORDS = 12
_MANY_COLUMNS = 6  # more do not fit 80 columns of text with lines between them


def messages() -> Console:
    """Return the console for progress and messages."""
    return Console(stderr=True)


def results() -> Console:
    """Return the console for results."""
    return Console()


def print_text(text: str) -> None:
    """Print plain text on stdout, without wrapping or colours, so that it can be copied."""
    results().print(text, highlight=False, markup=False, soft_wrap=True)


def print_message(text: str) -> None:
    """Print plain text on stderr."""
    messages().print(text, highlight=False, markup=False, soft_wrap=True)


def print_error(message: str) -> None:
    """Print one error on stderr, without wrapping, so that paths and keys can be copied."""
    messages().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


class _Messages(logging.StreamHandler):
    """Writes to the current stderr, which a progress bar replaces to stay below all messages."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure_logging() -> None:
    """Send log messages of eligo to stderr."""
    handler = _Messages()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("eligo")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    # Transformers reads this on import.
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
    """Print the result of a training and write it to its log, in the main process only."""
    from accelerate import PartialState

    from eligo.train.log import no_improvement
    from eligo.train.run_log import record_messages

    if not PartialState().is_main_process:
        return
    with record_messages() as run_log:
        print_result(result if json else _in_short(plain_data(result)), json)
        file = StringIO()
        Console(file=file, width=_LOG_COLUMNS).print(_render(plain_data(result)))
        run_log.write(f"result\n{file.getvalue().rstrip()}")
        values = result if isinstance(result, Mapping) else vars(result)
        if message := no_improvement(Path(values["folder"]), values["best_step"]):
            print_message(message)
            run_log.write(message, logging.WARNING)


def _in_short(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without values of single layers, which the log of the run has."""
    best = result.get("best")
    if isinstance(best, Mapping):
        return result | {"best": {name: x for name, x in best.items() if "." not in name}}
    return result


def is_output(hint: Any) -> bool:
    """Whether a flag of this type names something to write."""
    return any(_has(hint, kind) for kind in (OutFile, OutFolder, OutFileOrFolder))


def check_out(out: Path, hint: Any, name: str = "out") -> None:
    """Refuse an output of this type that cannot be written, without writing."""
    if _has(hint, OutFileOrFolder):
        return
    if not _has(hint, OutFile):
        check_folder(out)
    elif out.is_dir():
        raise InputError(f"--{name} names a file to write, {out} is a folder")
    else:
        check_file(out)


def _has(hint: Any, kind: Any) -> bool:
    return hint == kind or any(_has(inner, kind) for inner in get_args(hint))


def write_result_file(out: Path | None, device: Any, result: Mapping[str, Any]) -> None:
    """Write a result with date, hardware and command, if `--out` was given."""
    if out is None:
        return
    from eligo.report.provenance import provenance

    content = provenance(str(device)) | plain_data(result)
    write_text(out, json_module.dumps(content, indent=1) + "\n")


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """Return the words that a tokenizer encodes as unknown; only fast tokenizers report them."""
    if not tokenizer.is_fast:  # no offsets
        return []
    from eligo.pretrained.chat import tokenize

    encoded = tokenize(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True)
    pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [text[i:j].strip() for piece, (i, j) in pieces if piece == tokenizer.unk_token_id]


def warn_unknown_words(tokenizer: Any, texts: Iterable[str]) -> None:
    """Print the words that are not in the model's vocabulary."""
    if unknown := list(dict.fromkeys(w for text in texts for w in unknown_words(tokenizer, text))):
        more = f" and {len(unknown) - _MAX_WORDS} more" if len(unknown) > _MAX_WORDS else ""
        print_message(
            f"the model does not know these words: {', '.join(unknown[:_MAX_WORDS])}{more}"
        )


def plain_data(value: Any) -> Any:
    """Return a value as JSON data: configs, dataclasses, paths and tensors; NaN becomes None."""
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
    many = len(columns) > _MANY_COLUMNS
    table = compact_table(title or "") if many else Table(title=title, title_justify="left")
    table.show_header = named
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    return table


def compact_table(
    title: str, caption: str = "", names: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Table:
    """Return an empty table for 80 columns of text: columns of names, then of numbers."""
    table = Table(
        title=title, caption=caption or None, title_justify="left", caption_justify="left",
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
