"""`python -m benchmarks.tokens.methods_page`: measured figures on the page of methods.

The last columns of the table, and the line below it, are written from the committed results of the
studies: points of accuracy lost at every cost. Run it after a study; what is missing stays empty.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eligo.errors import InputError
from eligo.io.files import write_text

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "tokens_methods.md"
STUDIES = {"scenes": HERE / "results" / "study.json", "photos": HERE / "results" / "photos.json"}
"""Result files, by the name of the column."""
_LEARNED = {
    "learned": {"scenes": "two_stage_{}", "photos": "two_stage@{}"},
    "learned, mmr": {"scenes": "mmr_{}", "photos": "two_stage_mmr@{}"},
    "VisionSelector": {"scenes": "vision_selector_{}", "photos": "vision_selector@{}"},
}
"""Variants of the trained rows; a training-free method is `NAME@POINT` everywhere."""
_KEYS = {"scenes": "drop", "photos": "lost"}
_CAPTION = "**Lost**: "


def main() -> None:
    """Write the figures of all results that exist into the page."""
    found = {
        name: json.loads(path.read_text("utf-8"))
        for name, path in STUDIES.items()
        if path.is_file()
    }
    write_text(PAGE, filled(PAGE.read_text("utf-8"), found))


def filled(page: str, studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with the figures of these studies in its first table, and the line below."""
    lines = page.splitlines()
    start = next((at for at, line in enumerate(lines) if line.startswith("| Name |")), None)
    caption = next((at for at, line in enumerate(lines) if line.startswith(_CAPTION)), None)
    if start is None or caption is None:
        raise InputError(f"the page has no table that begins with | Name |, or no line {_CAPTION}")
    heads = [f"Lost, {name}" for name in studies]
    end = next(at for at in range(start, len(lines)) if not lines[at].startswith("|"))
    own = sum(not cell.startswith("Lost, ") for cell in _cells(lines[start]))
    for at in range(start, end):
        cells = _cells(lines[at])[:own]
        if at == start:
            cells += heads
        else:
            cells += [_lost(_name(cells[0]), name, study) for name, study in studies.items()]
        lines[at] = "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
    lines[start + 1] = "|" + "---|" * (own + len(heads))
    lines[caption] = _CAPTION + "; ".join(_about(name, study) for name, study in studies.items())
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _name(cell: str) -> str:
    """Return the name in the first cell of a row, without link and code marks."""
    return re.sub(r"\[(.*)\]\(.*\)", r"\1", cell).replace("`", "")


def _lost(name: str, column: str, study: Mapping[str, Any]) -> str:
    """Return the points lost at every cost, largest cost first; a dash where nothing is known."""
    pattern = _LEARNED.get(name, {}).get(column, f"{name}@{{}}")
    rows = {row["variant"]: row for row in study["variants"]}
    found = [rows.get(pattern.format(point)) for point in study["allowed"]]
    if not any(found):
        return ""
    key = _KEYS[column]
    # Rounded first: no "-0.0".
    return " / ".join("–" if row is None else f"{round(row[key], 1) + 0.0:.1f}" for row in found)


def _about(name: str, study: Mapping[str, Any]) -> str:
    costs = " / ".join(study["allowed"])
    dates, earlier = [study["date"]], study.get("earlier")  # what it took from another study
    while earlier is not None:
        dates, earlier = [earlier["date"], *dates], earlier.get("earlier")
    return f"{name} at {costs}, {' and '.join(dates)}, {study['hardware']}"


if __name__ == "__main__":
    main()
