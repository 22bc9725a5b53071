"""`--out FILE` of the commands that measure: the result with date, hardware and command."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Any

from eligo.cli.console import plain_data
from eligo.errors import InputError
from eligo.files import make_folder, write_text


def check_result_file(out: Path | None) -> None:
    """Refuse a file that cannot be written: said before the work, not after it."""
    if out is None:
        return
    if out.is_dir():
        raise InputError(f"--out names a file to write, {out} is a folder")
    make_folder(out.parent)


def write_result_file(out: Path | None, device: Any, found: Mapping[str, Any]) -> None:
    """Write it, if it was asked for; last of all, so that a full disk costs the file only."""
    if out is None:
        return
    from eligo.report.provenance import provenance

    write_text(out, dumps(provenance("eligo", str(device)) | plain_data(found), indent=1) + "\n")
