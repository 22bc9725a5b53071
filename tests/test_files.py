"""Files are written completely or not at all."""

from pathlib import Path

import pytest

from eligo.cli import main
from eligo.cli.commands import COMMANDS, Command
from eligo.errors import InputError, OutputError
from eligo.io.files import clear_unfinished, make_folder, write_text, writing, writing_folder
from eligo.io.reading import numbered_lines, read_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_with_its_folder(tmp_path):
    path = write_text(tmp_path / "new" / "deep" / "ä note.txt", "wähle\n")
    assert path.read_text(encoding="utf-8") == "wähle\n"
    assert names(path.parent) == ["ä note.txt"]
    write_text(path, "again")
    assert path.read_text() == "again"
    assert names(path.parent) == ["ä note.txt"]


def test_file_is_never_seen_half_written(tmp_path):
    path = write_text(tmp_path / "note.txt", "old")
    with writing(path) as temporary:
        temporary.write_text("ne")
        assert path.read_text() == "old"
        with writing(path) as other:  # a concurrent writer does not interfere
            other.write_text("other")
        assert path.read_text() == "other"
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["note.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("before", [None, "old"])
def test_exception_leaves_no_file(tmp_path, error, before):
    path = tmp_path / "note.txt"
    if before is not None:
        write_text(path, before)

    def fail() -> None:
        with writing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == ([] if before is None else ["note.txt"])
    assert before is None or path.read_text() == before


def test_writing_nothing_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be written"), writing(tmp_path / "note.txt"):
        pass
    assert names(tmp_path) == []


def test_unwritable_path_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "note.txt", tmp_path / "file" / "deep" / "note.txt"):
        with pytest.raises(InputError, match=r"note.txt: cannot be written .*where you may write"):
            write_text(path, "text")
    with (
        pytest.raises(InputError, match="cannot be written"),
        writing(tmp_path / "no" / "note.txt", make_folder=False) as temporary,
    ):
        temporary.write_text("text")
    assert names(tmp_path) == ["file"]

    def read_only(self, *_args, **_options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_text", read_only)  # root can write anywhere
    with pytest.raises(InputError, match="Permission denied"):
        write_text(tmp_path / "note.txt", "text")


def test_command_line_shows_no_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(COMMANDS, "note", Command("test_files:note", "writes a note"))
    monkeypatch.chdir(tmp_path)
    assert main(["note"]) == 2
    assert "file/note.txt: cannot be written" in capsys.readouterr().err


def note() -> None:
    write_text("file/note.txt", "text")


def test_clear_unfinished_removes_temporary_files(tmp_path):
    kept = write_text(tmp_path / "deep" / "note.txt", "whole")
    hidden = write_text(tmp_path / ".hidden", "kept")
    writer = writing(kept)
    writer.__enter__().write_text("half")  # never exits
    folder_writer = writing_folder(kept.parent / "model", marker="config.yaml")
    write_text(folder_writer.__enter__() / "config.yaml", "half")
    assert len(names(kept.parent)) == 3
    clear_unfinished(tmp_path)
    assert names(kept.parent) == ["note.txt"]
    assert hidden.exists()


def test_make_folder_checks_that_it_is_writable(tmp_path):
    folder = make_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert not list(folder.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"b: cannot be written .*where you may write"):
        make_folder(tmp_path / "file" / "b")


def test_text_with_bom_and_windows_line_ends(tmp_path: Path):
    """Byte order mark, CRLF, blank lines, and line separators inside JSON strings."""
    path = tmp_path / "ünï.jsonl"
    path.write_bytes("\ufeffone\r\n\r\ntwo\u2028still two\u0085\n \nlast".encode())
    assert read_text(path).startswith("one")
    lines = [(number, line.rstrip("\r")) for number, line in numbered_lines(path)]
    assert lines == [(1, "one"), (3, "two\u2028still two\u0085"), (5, "last")]
    with pytest.raises(InputError, match=r"none: there is no such file"):
        read_text(tmp_path / "none")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot be read as UTF-8 text"):
        list(numbered_lines(path))
    with pytest.raises(InputError, match=r"is a folder; expected a file"):
        read_text(tmp_path)
