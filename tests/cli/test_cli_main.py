"""The entry point: finding commands, exit codes, signals and light imports."""

import json
import os
import signal
from itertools import groupby

import pytest

from eligo import __version__
from eligo.cli import main
from eligo.cli.commands import ABOUT, COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_has_help(name, capsys):
    command = COMMANDS[name]
    assert callable(command.load())
    assert command.help
    assert main([*name.split(), "--help"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["sample", "fail"], 1, "error: the disk is full\n"),
        (["sample", "refuse"], 2, "error: picture.png: got 3 pixels, expected 32\n"),
        (["sample", "interrupted"], 130, "stopped by an interrupt\n"),
        (["sample", "swallowed"], 130, "stopped by an interrupt\n"),
        (["sample", "terminated"], 143, "stopped by SIGTERM\n"),
        (["sample", "fial"], 2, "unknown command eligo sample fial; did you mean fail?"),
        (["smaple", "fail"], 2, "unknown command eligo smaple; did you mean sample?"),
        (["zzz"], 2, "unknown command eligo zzz (there are: demo"),
        (["--jsn"], 2, "got '--jsn', expected a command first"),
        (["sample", "--jsn"], 2, "got '--jsn', expected a command first"),
        ([], 2, "usage: eligo COMMAND"),
        (["sample"], 2, "usage: eligo sample VERB"),
    ],
)
def test_exit_codes_and_messages(run, args, code, expected):
    outcome = run(*args)
    assert (outcome.code, outcome.out) == (code, "")
    assert expected in outcome.err
    assert "Traceback" not in outcome.err


def test_unexpected_error_keeps_its_traceback(run):
    with pytest.raises(ZeroDivisionError):
        run("sample", "broken")


INTERRUPTED = """
import os, signal, sys
from eligo.cli import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["demo", "--quick", "--out", "demo"]))
"""


@pytest.mark.parametrize(
    "module",
    ["tyro", "pydantic", "rich.console", "torch", "torch.nn", "transformers", "PIL.Image"],
)
def test_interrupt_during_imports_exits_cleanly(python, tmp_path, module):
    result = python("-c", INTERRUPTED.format(module=module), cwd=tmp_path)
    assert "Traceback" not in result.stderr
    # A shell reports 130 for both: CPython re-raises a signal that arrives inside exec("...").
    assert result.returncode in (130, -signal.SIGINT)
    assert result.stderr.splitlines()[-1] == "stopped by an interrupt"


def test_signal_handlers_are_restored_after_a_command(run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run("sample", "interrupted")
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert after == before


def test_help_lists_all_commands_or_one_family(run):
    overall = run("--help")
    assert overall.code == 0
    assert "  info     versions" in overall.out
    assert "  patches  which image patches" in overall.out
    assert "  sample   \n           take, take_plain, look, fail" in overall.out
    family = run("sample", "--help")
    assert family.code == 0
    assert "  take_plain   to take_plain" in family.out


def test_families_are_contiguous_and_have_a_description():
    heads = [name.split()[0] for name in COMMANDS]
    assert [head for head, _ in groupby(heads)] == list(dict.fromkeys(heads))
    assert {head for head in heads if head not in COMMANDS} == set(ABOUT)


def test_version(run):
    assert run("--version").out == f"eligo {__version__}\n"


LIGHT = """
import sys
before = set(sys.modules)
from eligo.cli import main
code = main({args})
packages = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(code, sorted(packages - sys.stdlib_module_names), file=sys.stderr)
"""


@pytest.mark.parametrize(("args", "code"), [(["--help"], 0), (["--version"], 0), ([], 2)])
def test_help_imports_only_the_standard_library(python, args, code):
    result = python("-c", LIGHT.format(args=args))
    assert result.stderr.splitlines()[-1] == f"{code} ['eligo']"


def test_commands_and_configs_import_no_torch(python):
    """Neither the modules of commands nor their configs import torch, so help is fast."""
    lines = ["import sys", "from eligo.cli.commands import COMMANDS"]
    lines += ["for name, command in COMMANDS.items():", "    command.load()"]
    lines += ["    if 'torch' in sys.modules: sys.exit(name)", "import eligo.cli.flags"]
    lines += ["from eligo.cli.registry import TASKS, resolve_task", "for name in TASKS:"]
    lines += ["    resolve_task(name)", "    if 'torch' in sys.modules: sys.exit(name)"]
    result = python("-c", "\n".join(lines))
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_eligo_imports_neither_torch_nor_pydantic(python):
    result = python("-c", "import eligo, sys; print({'torch', 'pydantic'} & set(sys.modules))")
    assert result.stdout == "set()\n", result.stderr


def test_python_m_eligo(python):
    result = python("-m", "eligo", "inof")
    assert result.returncode == 2
    assert "unknown command eligo inof; did you mean info?" in result.stderr
    assert "Traceback" not in result.stderr


def test_info_in_a_process_and_closed_pipe(python):
    result = python("-m", "eligo", "info", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["versions"]["eligo"] == __version__
    code = "import os, sys; os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1)\n"
    code += "from eligo.cli import main; sys.exit(main(['--help']))"
    result = python("-c", code)
    assert (result.returncode, result.stderr) == (141, "")


def test_closed_streams_and_narrow_terminal(python):
    code = (
        "import os, sys; os.environ['COLUMNS'] = '1'\n"
        "sys.stdin = sys.stdout = None\n"
        "from eligo.cli import main\n"
        "sys.exit(main(['tokens', 'plan', '--help']) or main(['--help']))"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("own", [None, "ACTIVE"])
def test_waiting_threads_leave_their_core_to_others(own, monkeypatch, capsys):
    """Busy waiting makes torch several times as slow on a busy machine; a user's choice stays."""
    monkeypatch.setenv("OMP_WAIT_POLICY", own or "")
    if own is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert main(["--version"]) == 0
    assert os.environ["OMP_WAIT_POLICY"] == (own or "PASSIVE")
