"""Pages are one well-formed, self-contained file; intervals of proportions."""

import base64
import doctest
import io
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eligo.errors import InputError
from eligo.report import intervals, page
from eligo.report.page import Html

VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Raises if an end tag does not close the last open element; collects the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def sample() -> Html:
    image = Image.new("RGB", (8, 6), (1, 2, 3))
    return page.page(
        "Title <1>",
        page.card("card", page.row(page.figure(image, "pic"), "plain & simple")),
        page.row("a", "b", columns=2),
        page.table([{"name": "x<y", "n": 1.23456}, {"name": None, "n": 2}]),
        page.chips(["a", Html("<b>b</b>"), page.swatch((1, 2, 3))]),
        page.details("more", "inside"),
        lead="lead",
        footer="foot",
    )


def test_page_is_well_formed_and_self_contained():
    text = sample()
    words = "".join(Balanced(text).text)
    for expected in ("Title <1>", "plain & simple", "x<y", "1.235", "more", "foot", "lead"):
        assert expected in words
    assert not re.search(r"https?:|<script|<link|@import", text)
    assert all(src.startswith("data:") for src in re.findall(r'src="([^"]*)"', text))
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_pictures_are_embedded():
    image = Image.new("RGB", (8, 6), (1, 2, 3))
    kind, _, data = page.data_uri(image).partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as back:
        assert back.size == (8, 6)
        assert back.convert("RGB").getpixel((0, 0)) == (1, 2, 3)


@given(st.text())
def test_text_is_never_markup(text: str):
    parts = (page.tag("p", text), page.chips([text]), page.table([{"a": text}]))
    for part in parts:
        Balanced(part)
        assert part.count("<") == page.tag("p", "").count("<") * (part.count("<") // 2)
    assert page.html(page.html(text)) == page.html(text)


def test_numbers_are_right_aligned():
    text = page.table([{"name": "x", "n": 1}, {"name": "y", "n": 2.5}])
    assert '<td class="number">2.5</td>' in text
    assert "<th>name</th>" in text


def test_page_is_written_to_a_file(tmp_path):
    path = page.write_page(tmp_path / "new" / "index.html", sample())
    assert path.read_text(encoding="utf-8") == sample()
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        page.write_page(tmp_path / "file" / "index.html", sample())


def test_known_intervals():
    assert doctest.testmod(intervals).failed == 0
    assert doctest.testmod(intervals).attempted


@given(st.integers(0, 500), st.integers(0, 500))
def test_interval_contains_the_observed_share(successes: int, failures: int):
    trials = successes + failures
    low, high = intervals.wilson_interval(successes, trials)
    assert 0 <= low <= high <= 1
    if trials:
        assert low - 1e-12 <= successes / trials <= high + 1e-12
    mirrored = intervals.wilson_interval(failures, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_more_trials_narrow_the_interval_and_invalid_counts_are_refused():
    few, many = intervals.wilson_interval(5, 10), intervals.wilson_interval(500, 1000)
    assert many[1] - many[0] < few[1] - few[0]
    for pair in ((-1, 3), (4, 3)):
        with pytest.raises(InputError, match="trials"):
            intervals.wilson_interval(*pair)
