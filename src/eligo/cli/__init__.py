"""The command line: `eligo <family> <verb> [CONFIG] [--a.b value]`.

Only the command that is called is imported, so that `eligo --help` is fast and needs no torch.
"""

import errno
import inspect
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import eligo
from eligo import __version__
from eligo.cli.commands import ABOUT, COMMANDS, Command
from eligo.errors import EligoError, InputError
from eligo.io.interrupts import Interrupted, Raise, replaced, restore
from eligo.renamed import new_name

_MIN_COLUMNS = 20  # tyro cannot lay out help in fewer than ten
_FOOTER = (
    "`eligo COMMAND --help` describes a command.\n"
    "Exit codes: 0 done, 1 the work failed, 2 bad input, 130 interrupted, 143 terminated."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `eligo` with these arguments and return the exit code."""
    # Threads that wait for work leave their core to others: on a busy machine, torch is several
    # times as fast. On a free one it makes no difference. Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return _run_guarded(_dispatch, argv)


def run_script(function: Callable[..., Any], argv: Sequence[str] | None = None) -> int:
    """Run a function as a command (`python -m benchmarks...`) and return the exit code.

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
    _prepare_streams()
    try:
        _check_text(args)
        with _kept_interrupts():
            code = work(args)
        sys.stdout.flush()  # here, where a closed pipe can still be handled
        return _end_processes(code)
    except EligoError as error:
        from eligo.cli.console import print_error

        print_error(str(error))
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt as stop:
        number = getattr(stop, "number", signal.SIGINT)
        if os.environ.get("RANK", "0") == "0":  # once, however many processes were launched
            cause = "SIGTERM" if number == signal.SIGTERM else "an interrupt"
            # Not by rich, whose import may have been interrupted.
            print(str(stop) or f"stopped by {cause}", file=sys.stderr)
        return _end_processes(128 + number)
    except BrokenPipeError:
        if not _stdout_is_closed():
            raise
        return 141
    except (OSError, MemoryError) as error:
        message = _system_error(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2 if isinstance(error, OSError) else 1
    except SystemExit as exit:  # tyro has printed an error, or the help
        if isinstance(exit.code, int | None):
            return exit.code or 0
        raise


@contextmanager
def _kept_interrupts() -> Iterator[None]:
    """Raise `Interrupted` after a signal, whatever libraries turn it into.

    Some catch it during their import and fail later with an unrelated error (ImportError,
    RecursionError).
    """
    handler = Raise()
    before = replaced(handler)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if handler.number:
            raise Interrupted(handler.number) from error
        raise
    finally:
        restore(before)


def _end_processes(code: int) -> int:
    if "eligo.train.processes" in sys.modules:  # trained, perhaps in several processes
        sys.modules["eligo.train.processes"].end(code)
    return code


def _prepare_streams() -> None:
    """Replace closed standard streams, and accept narrow terminals and any encoding."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if shutil.get_terminal_size().columns < _MIN_COLUMNS:
        os.environ["COLUMNS"] = str(_MIN_COLUMNS)
    # File names may hold characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _check_text(args: list[str]) -> None:
    """Refuse bytes that are not UTF-8: they arrive as surrogates, which cannot be written."""
    for number, arg in enumerate(args, 1):
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in arg):
            raise InputError(
                f"argument {number}: got {arg!r:.80}, expected UTF-8 text without NUL; rename "
                "the file, or type the text again"
            )


def _system_error(error: OSError | MemoryError) -> str | None:
    """Return the message for an error of the operating system; None for a bug.

    A path outside this package that cannot be used (name too long, no permission, a circular link)
    is the user's input, not a bug.
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
    """Return whether the reader of stdout is gone (`eligo info | head -1`); drop the rest if so."""
    try:
        print(flush=True)  # a mere flush does nothing if stdout is unbuffered
    except BrokenPipeError:
        _drop_stdout()
        return True
    return False


def _drop_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(args: list[str]) -> int:
    if args[:1] == ["--version"]:
        print(f"eligo {__version__}")
        return 0
    words = list(takewhile(lambda arg: not arg.startswith("-"), args[:2]))
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            family = words[0] if length == 2 else None
            _call(COMMANDS[name].load(), args[length:], f"eligo {name}", family)
            return 0
    family = words[0] if words and _verbs(words[0]) else None
    unknown = words[1:2] if family else words[:1]
    if unknown:
        raise InputError(_unknown_command(words, unknown[0], family))
    text = _family_help(family) if family else _help()
    wants_help = bool({"-h", "--help"} & set(args))
    if not wants_help and len(args) > len(words):
        raise InputError(f"got {args[len(words)]!r}, expected a command first\n\n{text}")
    print(text, file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


def _call(function: Callable[..., Any], args: list[str], prog: str, family: str | None) -> None:
    from eligo.cli.console import configure_logging
    from eligo.cli.flags import call
    from eligo.train.run_log import record_messages

    configure_logging()
    with record_messages():  # until a run folder exists
        call(function, args, prog=prog, family=family)


def _verbs(family: str) -> dict[str, Command]:
    prefix = f"{family} "
    return {
        name.removeprefix(prefix): command
        for name, command in COMMANDS.items()
        if name.startswith(prefix)
    }


def _unknown_command(words: list[str], unknown: str, family: str | None) -> str:
    name = " ".join(words)
    if new := new_name("command", name):
        return f"`eligo {name}` is now {new}"
    from eligo.config.problems import did_you_mean

    heads = _verbs(family) if family else dict.fromkeys(name.split()[0] for name in COMMANDS)
    place = f"eligo {family}" if family else "eligo"
    hint = did_you_mean(unknown, list(heads))
    return f"unknown command {place} {unknown}{hint} (there are: {', '.join(heads)})"


def _help() -> str:
    lines = ["usage: eligo COMMAND [CONFIG] [--key value ...]", ""]
    lines += ["Learned selection for vision-language models: keep what matters, drop the rest.", ""]
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
