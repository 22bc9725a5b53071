"""`python -m benchmarks.tokens.methods_page`: figures of the studies in the table of methods."""

import pytest

from benchmarks.tokens.methods_page import PAGE, filled
from eligo.errors import InputError
from eligo.tokens.methods import METHODS

EMPTY = """\
# Methods

| Name | Keeps |
|---|---|
| `none` | all |
| `tome` | means |
| `mmr` | distinct ones |
| [learned](a.md) | what helps |
| [learned, `mmr`](b.md) | both |

**Lost**: nothing yet

| Name | Paper |
|---|---|
"""


def study(lost: dict[str, float], *points: str, key: str = "drop") -> dict:
    rows = [{"variant": name, key: value} for name, value in lost.items()]
    allowed = dict.fromkeys(points, 1.0)
    return {"variants": rows, "allowed": allowed, "date": "2026-01-02", "hardware": "a GPU"}


SCENES = study(
    {"none": 0, "tome@33": -0.04, "tome@11": 2.55, "two_stage_33": 0.1, "two_stage_11": 1.5,
     "mmr_11": 1.2, "mmr@33": 0.5, "mmr@11": 9.0},
    "33", "11",
)  # fmt: skip
PHOTOS = study({"tome@64": 1.0, "two_stage@64": -0.75}, "64", key="lost")


def test_figures_are_filled_in():
    page = filled(EMPTY, {"scenes": SCENES, "photos": PHOTOS})
    assert page == EMPTY.replace(
        "| Name | Keeps |\n|---|---|\n", "| Name | Keeps | Lost, scenes | Lost, photos |\n"
        "|---|---|---|---|\n",
    ).replace("| all |", "| all | | |").replace("| means |", "| means | 0.0 / 2.5 | 1.0 |").replace(
        "| distinct ones |", "| distinct ones | 0.5 / 9.0 | |"
    ).replace("| what helps |", "| what helps | 0.1 / 1.5 | -0.8 |").replace(
        "| both |", "| both | – / 1.2 | |"
    ).replace(
        "nothing yet",
        "scenes at 33 / 11, 2026-01-02, a GPU; photos at 64, 2026-01-02, a GPU",
    )  # fmt: skip
    assert filled(page, {"scenes": SCENES, "photos": PHOTOS}) == page
    assert filled(page, {"scenes": SCENES}).count("Lost, photos") == 0
    earlier = {"date": "2026-01-01", "earlier": {"date": "2025-12-31"}}
    page = filled(EMPTY, {"scenes": SCENES | {"earlier": earlier}})
    assert "scenes at 33 / 11, 2025-12-31 and 2026-01-01 and 2026-01-02, a GPU\n" in page
    with pytest.raises(InputError, match="no table"):
        filled("# Methods\n", {})


def test_page_has_a_line_for_every_method():
    rows = [line.split(" | ")[0] for line in PAGE.read_text("utf-8").splitlines()]
    for name in METHODS:
        assert rows.count(f"| `{name}`") >= 1, name
