"""The command line: `eligo <family> <verb> [CONFIG] [--a.b value]`.

Help and unknown commands are answered from a static table; only the command that is called is
imported, so that `eligo --help` needs neither torch nor a second.
"""

import errno
import inspect
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import eligo
from eligo import __version__
from eligo.cli.commands import ABOUT, COMMANDS, Command
from eligo.cli.interrupts import kept_interrupts
from eligo.errors import EligoError, InputError

_NARROWEST = 20  # columns; with fewer than ten, help is never laid out
_FOOTER = (
    "`eligo COMMAND --help` tells more.\n"
    "Exit codes: 0 done, 1 the work failed, 2 bad input, 130 interrupted, 143 terminated."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `eligo` with these arguments and return the exit code."""
    return _run_guarded(_dispatch, argv)


def run_script(function: Callable[..., Any], argv: Sequence[str] | None = None) -> int:
    """Run a function as a command of its own (`python -m benchmarks...`); return the exit code.

    Its signature gives the flags, as for every command of `eligo`.
    """
    module = inspect.getmodule(function)
    spec = getattr(module, "__spec__", None)
    prog = f"python -m {spec.name}" if spec else function.__module__

    def run(args: list[str]) -> int:
        _call(function, args, prog, family="benchmarks")
        return 0

    return _run_guarded(run, argv)


def _run_guarded(work: Callable[[list[str]], int], argv: Sequence[str] | None) -> int:
    """Run a command line. Errors become one line and an exit code; only bugs are raised."""
    args = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
        _check_words(args)
        with kept_interrupts():
            code = work(args)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return _ended(code)
    except EligoError as error:
        from eligo.cli.console import print_error

        print_error(str(error))
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        if os.environ.get("RANK", "0") == "0":  # once, however many processes were launched
            cause = "SIGTERM" if number == signal.SIGTERM else "an interrupt"
            print(str(stop) or f"stopped by {cause}", file=sys.stderr)  # rich may be half imported
        return _ended(128 + number)
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        return 141
    except (OSError, MemoryError) as error:
        told = _refused_by_the_system(error)
        if told is None:
            raise
        print(f"error: {told}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 1
    except SystemExit as exit:  # tyro has said what was wrong, or shown the help
        if isinstance(exit.code, int | None):
            return exit.code or 0
        raise


def _ended(code: int) -> int:
    if "eligo.train.processes" in sys.modules:  # trained, perhaps in several processes
        sys.modules["eligo.train.processes"].end(code)
    return code


def _prepare_output() -> None:
    """Standard streams that can be written to, whatever they are and however narrow."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us; the first free descriptor
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if shutil.get_terminal_size().columns < _NARROWEST:
        os.environ["COLUMNS"] = str(_NARROWEST)
    # Names of files may hold what the terminal's encoding cannot show: escape that.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_words(args: list[str]) -> None:
    """Bytes that are no UTF-8 come in as halves of characters, which no text file can hold."""
    for number, arg in enumerate(args, 1):
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in arg):
            raise InputError(
                f"argument {number}: got {arg!r:.80}, expected UTF-8 text without NUL; rename "
                "the file, or type the text again"
            )


def _refused_by_the_system(error: OSError | MemoryError) -> str | None:
    """What to say of an error that no code of ours foresaw; None for a bug, with its traceback.

    The line is drawn at the path: an operating system that refuses one outside this package (a
    name too long, a folder closed to us, a link to itself) is about what the user gave.
    """
    if isinstance(error, MemoryError):
        return "not enough memory for this; make the batch, the model or the files smaller"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        _drop_stdout()  # files are written by `eligo.io.files`, so this was stdout
        return f"the output cannot be written ({error.strerror})"
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    if not path or os.path.realpath(path).startswith(os.path.dirname(eligo.__file__)):  # noqa: PTH120
        return None
    return f"{path}: {error.strerror}; give another path, or change its permissions"


def _stdout_is_closed() -> bool:
    """Whether nobody reads our output any more (`eligo info | head -1`); if so, drop the rest."""
    try:
        print(flush=True)  # unbuffered output kept nothing that a mere flush would retry
    except BrokenPipeError:
        _drop_stdout()
        return True
    return False


def _drop_stdout() -> None:
    """What is still to be printed goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(args: list[str]) -> int:
    words = _leading_words(args)
    if args[:1] == ["--version"]:
        print(f"eligo {__version__}")
        return 0
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            family = words[0] if length == 2 else None
            _call(COMMANDS[name].load(), args[length:], f"eligo {name}", family)
            return 0
    family = words[0] if words and _verbs(words[0]) else None
    unknown = words[1:2] if family else words[:1]
    if unknown:
        raise InputError(_unknown_command(unknown[0], family))
    text = _family_help(family) if family else _help()
    asked = bool({"-h", "--help"} & set(args))
    if not asked and len(args) > len(words):
        raise InputError(f"got {args[len(words)]!r}, expected a command first\n\n{text}")
    print(text, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _call(function: Callable[..., Any], args: list[str], prog: str, family: str | None) -> None:
    from eligo.cli.call import call
    from eligo.cli.console import configure_logging

    configure_logging()
    call(function, args, prog=prog, family=family)


def _leading_words(args: list[str]) -> list[str]:
    words = []
    for arg in args[:2]:
        if arg.startswith("-"):
            break
        words.append(arg)
    return words


def _verbs(family: str) -> dict[str, Command]:
    prefix = f"{family} "
    return {
        name.removeprefix(prefix): command
        for name, command in COMMANDS.items()
        if name.startswith(prefix)
    }


def _unknown_command(word: str, family: str | None) -> str:
    from eligo.config.nearest import did_you_mean

    heads = _verbs(family) if family else dict.fromkeys(name.split()[0] for name in COMMANDS)
    place = f"eligo {family}" if family else "eligo"
    hint = did_you_mean(word, list(heads))
    return f"unknown command {place} {word}{hint} (there are: {', '.join(heads)})"


def _help() -> str:
    lines = ["usage: eligo COMMAND [CONFIG] [--key value ...]", ""]
    lines += ["eligo learns what a vision-language model needs to see, and keeps only that.", ""]
    rows = []
    for head in dict.fromkeys(name.split()[0] for name in COMMANDS):
        if head in COMMANDS:
            rows.append((head, COMMANDS[head].help))
        else:
            rows += [(head, ABOUT.get(head, "")), ("", ", ".join(_verbs(head)))]
    return "\n".join([*lines, *_rows(rows), "", _FOOTER])


def _family_help(family: str) -> str:
    rows = [(verb, command.help) for verb, command in _verbs(family).items()]
    lines = [f"usage: eligo {family} VERB [CONFIG] [--key value ...]", ""]
    if family in ABOUT:
        lines += [f"{family}: {ABOUT[family]}", ""]
    footer = _FOOTER.replace("COMMAND", f"{family} VERB")
    return "\n".join([*lines, *_rows(rows), "", footer])


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {help}" for name, help in rows]
