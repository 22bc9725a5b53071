"""The output files of the demo: explorer records, the page, and results.json."""

from collections.abc import Sequence
from dataclasses import fields
from json import dumps
from pathlib import Path
from typing import Any

from eligo.cli.demo.part import DemoSettings, Part
from eligo.explorer.export import export_run
from eligo.explorer.folder import FOLDER, RECORD_FILES, find_records, load_record, save_record
from eligo.explorer.record import ExplorerRecord
from eligo.io.files import make_folder, refuse_strange, write_text, writing_folder
from eligo.report.provenance import provenance

PAGE, RESULTS = "index.html", "results.json"
PHOTOS = Path(__file__).parent / "photos"
"""Records of real photos, written by `python -m benchmarks.explorer.photos`."""
_CONTENTS = "contents.json"  # marks the folder as written by the demo
_HOLDS = (_CONTENTS, *(f"[0-9][0-9]_*/{file}" for file in RECORD_FILES))


def prepare(out: Path) -> None:
    """Refuse a folder that cannot be written, before any work."""
    make_folder(out)
    refuse_strange(out / FOLDER, marker=_CONTENTS, holds=_HOLDS)


def photos() -> list[ExplorerRecord]:
    """Return the shipped records of real photos."""
    return [load_record(folder) for folder in find_records(PHOTOS)]


def write(
    out: Path,
    parts: Sequence[Part],
    settings: DemoSettings,
    first: Sequence[ExplorerRecord] = (),
) -> dict[str, Any]:
    """Write records (replacing an earlier demo's), page and results.json; return the latter.

    `first`: records to show before those of the parts.
    """
    records = [*first, *(record for part in parts for record in part.records)]
    with writing_folder(out / FOLDER, marker=_CONTENTS, holds=_HOLDS) as folder:
        for number, record in enumerate(records):
            save_record(record, folder / f"{number:02d}_{record.kind.replace(' ', '_')}")
        write_text(folder / _CONTENTS, dumps([record.title for record in records], indent=1) + "\n")
    results: dict[str, Any] = {
        **provenance(settings.device),
        "seed": settings.seed,
        "quick": settings.quick,
        "seconds": round(sum(part.seconds for part in parts), 1),
        "parts": [_plain(part) for part in parts],
        "page": str(export_run(out, out / PAGE)) if records else None,
    }
    write_text(out / RESULTS, dumps(results, indent=1, ensure_ascii=False) + "\n")
    return results


def _plain(part: Part) -> dict[str, Any]:
    """Return a part as JSON; of its records, only the titles."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    rows, titles = map(vars, part.rows), (record.title for record in part.records)
    return {**values, "rows": list(rows), "records": list(titles)}
