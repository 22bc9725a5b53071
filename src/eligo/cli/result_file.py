"""`--out`: checked before the work; and result files, with date, hardware and command."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any, get_args

from eligo.errors import InputError
from eligo.io.files import check_file, check_folder, write_text

OutFile = Annotated[Path, "file"]
"""The type of an `--out` that names a file; any other names a folder."""


def check_out(out: Path, hint: Any) -> None:
    """Refuse an `--out` of this type that cannot be written; nothing is made or changed."""
    if hint != OutFile and OutFile not in get_args(hint):
        check_folder(out)
    elif out.is_dir():
        raise InputError(f"--out names a file to write, {out} is a folder")
    else:
        check_file(out)


def write_result_file(out: Path | None, device: Any, found: Mapping[str, Any]) -> None:
    """Write it, if it was asked for; last of all, so that a full disk costs the file only."""
    if out is None:
        return
    from eligo.cli.console import plain_data
    from eligo.report.provenance import provenance

    write_text(out, dumps(provenance("eligo", str(device)) | plain_data(found), indent=1) + "\n")
