"""What the demo leaves behind: records, the page that shows them, and the numbers."""

from collections.abc import Sequence
from dataclasses import fields
from json import dumps
from pathlib import Path
from typing import Any

from eligo.cli.demo.part import Part, Work
from eligo.explorer.export import export_run
from eligo.explorer.folder import FOLDER, RECORD_FILES, save_record
from eligo.io.files import make_folder, refuse_strange, write_text, writing_folder
from eligo.report.provenance import provenance

PAGE, RESULTS = "index.html", "results.json"
_CONTENTS = "contents.json"  # by which a later demo knows that the records are its own
_HOLDS = (_CONTENTS, *(f"[0-9][0-9]_*/{file}" for file in RECORD_FILES))


def prepare(out: Path) -> None:
    """Whoever cannot write there should hear it now."""
    make_folder(out)
    refuse_strange(out / FOLDER, marker=_CONTENTS, holds=_HOLDS)


def write(out: Path, parts: Sequence[Part], work: Work) -> dict[str, Any]:
    """Records (instead of an earlier demo's), page, then results.json, which is returned."""
    shown = [one for part in parts for one in part.records]
    with writing_folder(out / FOLDER, marker=_CONTENTS, holds=_HOLDS) as folder:
        for number, one in enumerate(shown):
            save_record(one, folder / f"{number:02d}_{one.kind}")
        write_text(folder / _CONTENTS, dumps([one.title for one in shown], indent=1) + "\n")
    found: dict[str, Any] = {
        **provenance("eligo", work.device),
        "seed": work.seed,
        "quick": work.quick,
        "seconds": round(sum(part.seconds for part in parts), 1),
        "parts": [_plain(part) for part in parts],
        "page": str(export_run(out, out / PAGE)) if shown else None,
    }
    write_text(out / RESULTS, dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def _plain(part: Part) -> dict[str, Any]:
    """Without the records: those are in their folders."""
    told = {field.name: getattr(part, field.name) for field in fields(part)}
    told["rows"] = [vars(row) for row in part.rows]
    told["records"] = [one.title for one in part.records]
    return told
