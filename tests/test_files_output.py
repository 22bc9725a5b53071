"""Output paths: links, pipes and devices are kept, and so are files of others."""

import ast
import errno
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import eligo
from eligo.cli import main
from eligo.cli.commands import COMMANDS, Command
from eligo.cli.console import OutFile
from eligo.errors import InputError, OutputError
from eligo.io import files
from eligo.io.files import (
    GrowingFile,
    check_file,
    check_folder,
    checked_name,
    clear_unfinished,
    refuse_strange,
    remove_folder,
    replace_link,
    write_bytes,
    write_text,
    writing,
    writing_folder,
)
from eligo.io.tensors import save_tensors


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of files, to get the real errors of every library that writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------- links, pipes, devices


def test_link_is_kept_and_its_target_is_written(tmp_path):
    real = write_text(tmp_path / "real" / "note.txt", "old")
    link = tmp_path / "link.txt"
    link.symlink_to(Path("real") / "note.txt")
    chain = tmp_path / "chain.txt"
    chain.symlink_to(link)
    for path, text in ((link, "new"), (chain, "newer")):
        write_text(path, text)
        assert link.is_symlink()
        assert chain.is_symlink()
        assert real.read_text() == text
        assert not real.is_symlink()
    assert names(tmp_path) == ["chain.txt", "link.txt", "real"]
    assert names(tmp_path / "real") == ["note.txt"]


def test_broken_link_creates_its_target(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("missing.txt")
    write_text(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "missing.txt").read_text() == "text"
    nowhere = tmp_path / "nowhere"
    nowhere.symlink_to(Path("no") / "folder")
    for refused in (write_text, lambda path, _: check_file(path)):
        with pytest.raises(OutputError, match="nowhere: cannot be written"):
            refused(nowhere, "text")
    assert nowhere.is_symlink()
    assert not (tmp_path / "no").exists()


def test_circular_links_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="a: cannot be written"):
        write_text(tmp_path / "a", "text")
    with pytest.raises(OutputError), writing_folder(tmp_path / "a", marker="m") as folder:
        write_text(folder / "m", "")
    assert names(tmp_path) == ["a", "b"]


def test_pipe_is_written_directly(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()), daemon=True)
    reader.start()
    text = "many lines\n" * 20_000  # more than the buffer of a pipe
    write_text(pipe, text)
    reader.join(timeout=60)
    assert received == [text]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_device_is_written_directly(tmp_path):
    device, link = tmp_path / "null", tmp_path / "link"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("no devices can be made in this folder")
    link.symlink_to(device)
    for path in (device, link):
        check_file(path)
        write_text(path, "text")
        assert stat.S_ISCHR(device.stat().st_mode)
    save_tensors(device, {"a": torch.zeros(3)})
    assert stat.S_ISCHR(device.stat().st_mode)
    assert link.is_symlink()
    assert names(tmp_path) == ["link", "null"]


def test_open_file_is_written_directly(tmp_path):
    """As with `--out /dev/stdout > FILE`: earlier output is kept."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc")
    with (tmp_path / "printed").open("w") as printed:
        printed.write("before\n")
        printed.flush()
        write_text(f"/proc/self/fd/{printed.fileno()}", "result\n")
    assert (tmp_path / "printed").read_text() == "before\nresult\n"


def test_socket_is_refused(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OutputError, match="socket"):
            write_text(tmp_path / "s", "text")
    assert stat.S_ISSOCK((tmp_path / "s").stat().st_mode)


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_new_files_follow_the_umask(tmp_path, mask):
    with umask(mask):
        write_text(tmp_path / "text", "")
        save_tensors(tmp_path / "tensors", {"a": torch.zeros(3)})
        with writing_folder(tmp_path / "made", marker="m") as folder:
            save_file({"a": torch.zeros(3)}, folder / "m")  # as a library does
            (folder / "deep").mkdir()
    for name in ("text", "tensors", "made/m"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask, name
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o777 & ~mask


def test_replaced_file_keeps_its_permissions(tmp_path):
    path = write_text(tmp_path / "secret", "old")
    path.chmod(0o640)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# ---------------------------------------------------------------- folders


def model(path: Path, text: str = "new") -> None:
    with writing_folder(path, marker="config.yaml", holds=("config.yaml", "w/*.bin")) as folder:
        write_text(folder / "config.yaml", text)


def test_folder_is_replaced_only_if_eligo_wrote_all_of_it(tmp_path):
    path = tmp_path / "model"
    model(path, "old")
    write_bytes(path / "w" / "a.bin", b"")
    model(path)
    assert names(path) == ["config.yaml"]
    for stranger in ("thesis.tex", "w/notes.txt", "w/deep/a.bin", ".git/config"):
        kept = write_text(path / stranger, "mine")
        with pytest.raises(InputError, match=r"files that eligo did not write there \("):
            model(path)
        assert kept.read_text() == "mine"
        kept.unlink()
    (path / "w" / "link").symlink_to(tmp_path)  # nor a link to a folder
    with pytest.raises(InputError, match="did not write"):
        model(path)


def test_link_to_a_folder_is_kept(tmp_path):
    model(tmp_path / "disk" / "model", "old")
    link = tmp_path / "link"
    link.symlink_to(Path("disk") / "model")
    model(link)
    assert link.is_symlink()
    assert (tmp_path / "disk" / "model" / "config.yaml").read_text() == "new"
    assert names(tmp_path / "disk") == ["model"]
    assert names(tmp_path) == ["disk", "link"]


def test_working_directory_as_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("mine.txt", "mine")
    with pytest.raises(InputError, match="holds something else"):
        model(Path())
    assert names(tmp_path) == ["mine.txt"]


def test_failed_replacement_keeps_the_older_folder(tmp_path, monkeypatch):
    path = tmp_path / "model"
    model(path, "old")
    rename, calls = Path.rename, []

    def fail_second(self, target):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(OutputError, match=r"model: cannot be written \(Input/output error\)"):
        model(path)
    assert (path / "config.yaml").read_text() == "old"
    assert names(tmp_path) == ["model"]


def test_clear_unfinished_restores_a_half_replaced_folder(tmp_path):
    model(tmp_path / "model", "old")
    hidden = tmp_path / ".eligo-0123456789ab.old"
    hidden.mkdir()
    (tmp_path / "model").rename(hidden / "model")
    clear_unfinished(tmp_path)
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model" / "config.yaml").read_text() == "old"


def test_clear_unfinished_keeps_other_files(tmp_path):
    outside = write_text(tmp_path / "outside" / "mine.txt", "mine")
    run = tmp_path / "run"
    for mine in (".cache.tmp", ".editor/file.tmp", "deep/.#note.tmp"):
        write_text(run / mine, "mine")
    (run / ".eligo-0123456789ab.tmp").symlink_to(outside.parent)
    (run / "elsewhere").symlink_to(outside.parent)
    write_text(outside.parent / ".eligo-0123456789ab.tmp" / "of another", "")
    write_text(run / "deep" / ".eligo-abcdefabcdef.tmp" / "half", "")
    clear_unfinished(run)
    assert outside.read_text() == "mine"
    assert (outside.parent / ".eligo-0123456789ab.tmp" / "of another").exists()
    assert names(run / "deep") == [".#note.tmp"]
    assert {".cache.tmp", ".editor"} <= set(names(run))


def test_removing_a_link_keeps_its_target(tmp_path):
    mine = write_text(tmp_path / "mine" / "file", "")
    (tmp_path / "link").symlink_to(mine.parent)
    remove_folder(tmp_path / "link")
    assert names(tmp_path) == ["mine"]
    assert mine.exists()
    write_text(tmp_path / "made" / "file", "")
    (tmp_path / "made" / "inner").symlink_to(mine.parent)
    remove_folder(tmp_path / "made")
    assert names(tmp_path) == ["mine"]
    assert mine.exists()


def test_replace_link_replaces_only_links(tmp_path):
    replace_link(tmp_path / "best", Path("a"))
    replace_link(tmp_path / "best", Path("b"))
    assert (tmp_path / "best").readlink() == Path("b")
    write_text(tmp_path / "mine", "mine")
    with pytest.raises(OutputError, match="not a link"):
        replace_link(tmp_path / "mine", Path("a"))
    assert names(tmp_path) == ["best", "mine"]


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    write_text(tmp_path / "file", "")
    for name in ("pipe", "file"):
        with pytest.raises(InputError, match="expected a folder"):
            refuse_strange(tmp_path / name, marker="m")
        with pytest.raises(OutputError, match="is not a folder"):
            check_folder(tmp_path / name)
        with pytest.raises(OutputError, match="Not a directory"):
            check_file(tmp_path / name / "deep" / "file")
    check_file(tmp_path / "new" / "deep" / "file")
    assert not (tmp_path / "new").exists()  # nothing is created


# ---------------------------------------------------------------- full disks


def test_full_disk_is_reported_and_keeps_the_older_file(tmp_path):
    numbers = {"a": torch.arange(50_000)}
    save_tensors(tmp_path / "tensors", numbers)
    write_text(tmp_path / "text", "old")
    for write in (
        lambda: save_tensors(tmp_path / "tensors", {"a": torch.zeros(50_000)}),
        lambda: write_text(tmp_path / "text", "new" * 50_000),
        lambda: save_pretrained_like(tmp_path / "model"),
    ):
        with largest_file(10_000), pytest.raises(OutputError, match="File too large") as caught:
            write()
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    assert torch.equal(load_file(tmp_path / "tensors")["a"], numbers["a"])
    assert (tmp_path / "text").read_text() == "old"
    assert names(tmp_path) == ["tensors", "text"]


def save_pretrained_like(path: Path) -> None:
    """Like transformers: safetensors writes, and raises its own errors."""
    with writing_folder(path, marker="m") as folder:
        save_file({"a": torch.zeros(50_000)}, folder / "model.safetensors")


def test_full_disk_while_appending(tmp_path):
    lines = GrowingFile(tmp_path / "lines")
    lines.write(b"first\n")
    with largest_file(10), pytest.raises(OutputError, match="lines: cannot be written"):
        lines.write(b"second, too long\n")
    lines.close()
    assert (tmp_path / "lines").read_text().startswith("first\n")


def test_invalid_path_is_reported(tmp_path):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(InputError, match="cannot be written"):
            write_text(tmp_path / name, "text")
    write_text(tmp_path / ("x" * 255), "the longest")
    assert names(tmp_path) == ["x" * 255]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/a", "a\\b", "..\\x", "a\0b", "a\nb", "\x1b[31m", ".x",
     "x" * 201, "ä" * 101, "\ud800", "\u2028"],
)  # fmt: skip
def test_checked_name_refuses_unsafe_names(name):
    with pytest.raises(ValueError, match="expected"):
        checked_name(name)


@pytest.mark.parametrize("name", ["run", "run 2", "lr=0.1,b", "größe", "a..b", "-x", "x" * 200])
def test_checked_name_accepts_safe_names(name):
    assert checked_name(name) == name


# ---------------------------------------------------------------- the command line


def result(out: OutFile | None = None) -> None:
    """Writes a file.

    Args:
        out: The file.
    """
    assert out is not None
    write_text(out, "result")


def folder(out: Path) -> None:
    """Writes to a folder.

    Args:
        out: The folder.
    """
    raise AssertionError(f"{out} should have been refused")


def test_invalid_out_is_refused_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(COMMANDS, "result", Command("test_files_output:result", ""))
    monkeypatch.setitem(COMMANDS, "folder", Command("test_files_output:folder", ""))
    write_text(tmp_path / "file", "mine")
    cases = (("result", "."), ("result", "file/x"), ("folder", "file"), ("folder", "file/x/y"))
    monkeypatch.chdir(tmp_path)
    for command, out in cases:
        assert main([command, "--out", out]) == 2
        err = capsys.readouterr().err.strip()
        assert len(err.split("error: ")) == 2, err
        assert out in err
    assert names(tmp_path) == ["file"]
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root can write anywhere
    for command in ("result", "folder"):
        assert main([command, "--out", "new/x"]) == 2
        assert "write-protected" in capsys.readouterr().err
    monkeypatch.undo()


def test_commands_that_write_one_file_declare_it():
    """Commands that write one file declare it by type; `call` checks it."""
    from typing import get_args, get_type_hints

    told_as_file = set()
    for name, command in COMMANDS.items():
        hint = get_type_hints(command.load(), include_extras=True).get("out")
        if hint is not None and (hint == OutFile or OutFile in get_args(hint)):
            told_as_file.add(name)
    assert told_as_file == {
        "shots evaluate", "explore", "patches evaluate", "pixels evaluate", "pixels words",
        "tokens bench", "tokens evaluate", "tokens questions",
    }  # fmt: skip
    assert OutFile == Annotated[Path, "file"]


# ---------------------------------------------------------------- all output goes through files.py


_MODULES = {"io/files.py", "io/locks.py"}
_ALLOWED = {
    ("io/tensors.py", "save_file"),
    ("cli/__init__.py", "os.open"),  # a closed pipe on stdout
    ("io/reading.py", "os.open"),  # for reading, without blocking on a pipe
    ("pixels/inference/export.py", "np.save"),  # into memory
    ("shots/inference/embed.py", "write_text"),  # into the path from `writing`
}
_METHODS = {
    "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "rename", "symlink_to", "hardlink_to",
    "touch", "chmod", "rmtree", "copyfile", "copy2", "copytree", "makedirs", "save_file",
    "write_index", "tofile", "savez", "NamedTemporaryFile", "mkstemp", "mkdtemp",
}  # fmt: skip
_FUNCTIONS = {
    "os": ("open", "remove", "replace", "link", "symlink", "truncate", "mkdir", "rename", "unlink"),
    "np": ("save", "savetxt"),
    "torch": ("save",),
    "json": ("dump",),
    "shutil": ("move", "copy"),
}


def calls_that_write(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = getattr(getattr(function, "value", None), "id", "")
        if name in _FUNCTIONS.get(owner, ()):
            yield f"{owner}.{name}"
        is_function = isinstance(function, ast.Name)  # eligo.io.files has write_text too
        if name in _METHODS and not (is_function and name in ("write_text", "write_bytes")):
            yield name
        words = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
        words += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        modes = [w for w in words if isinstance(w, str) and set(w) <= set("rwaxbt+")]
        if name == "open" and any(set(mode) & set("wax+") for mode in modes):
            yield "open"


def test_no_other_module_writes_files():
    source = Path(eligo.__file__).parent
    found = {
        (str(path.relative_to(source)), call)
        for path in source.rglob("*.py")
        for call in calls_that_write(path)
        if path.relative_to(source).as_posix() not in _MODULES
    }
    assert found <= _ALLOWED, found - _ALLOWED


def test_temporary_path_has_the_same_name(tmp_path):
    """Libraries depend on the extension."""
    with writing(tmp_path / "module.pt2") as temporary:
        assert temporary.name == "module.pt2"
        temporary.write_text("")
    assert names(tmp_path) == ["module.pt2"]


@pytest.mark.parametrize("name", ["label.png", "overlay.png"])
def test_command_never_replaces_its_own_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Image.new("RGB", (64, 48)).save(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    command = ["pixels", "predict", "--image", str(tmp_path / name), "--out", str(tmp_path)]
    assert main(command) == 2
    assert f"{name}: would be replaced by the output" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before
    (tmp_path / "link").symlink_to(tmp_path)
    assert main([*command[:-1], str(tmp_path / "link")]) == 2
    assert (tmp_path / name).read_bytes() == before
    assert main([*command[:-1], str(tmp_path / "other")]) == 0
