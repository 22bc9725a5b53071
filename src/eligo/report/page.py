"""Self-contained HTML pages: one file, no network, light and dark, readable on a phone.

Functions return `Html`; any other text is escaped.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from PIL import Image

from eligo.io.files import write_text

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1d26; --soft: #5d6070; --paper: #f6f6f9;
  --card: #ffffff; --line: #e0e1e8; --accent: #3446c8; --chip: #eceefb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e9f0; --soft: #a2a5b6; --paper: #14151b;
  --card: #1d1f28; --line: #333645; --accent: #9aa8ff; --chip: #2a2e47; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.lead, .soft, figcaption { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .8rem;
  padding: 1rem; margin: 1rem 0; }
.card > h2, .card > h3 { margin-top: 0; }
.row { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; border-radius: .4rem; }
img.small { image-rendering: pixelated; }
figcaption { font-size: .85rem; margin-top: .25rem; overflow-wrap: anywhere; }
.chips { display: flex; flex-wrap: wrap; gap: .35rem; margin: .4rem 0; }
.chip { background: var(--chip); color: var(--ink); border-radius: 1rem; padding: .05rem .65rem;
  font-size: .88rem; }
.swatch { display: inline-block; width: .75em; height: .75em; border-radius: .2em;
  margin-right: .4em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
tr:last-child > td { border-bottom: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
details > summary { cursor: pointer; color: var(--accent); margin: .4rem 0; }
code { font: .9em ui-monospace, Menlo, Consolas, monospace; background: var(--chip);
  padding: .05em .35em; border-radius: .3em; }
footer { color: var(--soft); font-size: .85rem; margin-top: 3rem; }
"""
_SMALL = 160  # pixels; narrower pictures are enlarged without smoothing


class Html(str):
    """Markup that is not escaped again."""

    __slots__ = ()


def html(value: object) -> Html:
    """Return any value as markup; values that are not `Html` are escaped."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *parts: object, cls: str = "") -> Html:
    """Return an element: `tag("p", "a < b")` is `<p>a &lt; b</p>`."""
    attributes = f' class="{escape(cls)}"' if cls else ""
    return Html(f"<{name}{attributes}>{''.join(map(html, parts))}</{name}>")


def page(title: str, *parts: object, lead: object = "", footer: object = "") -> Html:
    """Return a whole document."""
    head = [tag("h1", title), *([tag("p", lead, cls="lead")] if lead else [])]
    tail = [tag("footer", footer)] if footer else []
    return Html(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{tag('main', *head, *parts, *tail)}</body></html>\n"
    )


def card(heading: str, *parts: object) -> Html:
    """Return a framed block with a heading."""
    return tag("section", tag("h3", heading), *parts, cls="card")


def row(*parts: object, columns: int | None = None) -> Html:
    """Lay out elements in columns; by default as many as fit the screen."""
    if columns is None:
        return tag("div", *parts, cls="row")
    style = f"grid-template-columns: repeat({columns}, 1fr)"
    return Html(f'<div class="row" style="{style}">{"".join(map(html, parts))}</div>')


def figure(image: Image.Image, caption: object = "", *, alt: str = "", photo: bool = False) -> Html:
    """Return an embedded picture with a caption and alternative text; `photo`: as JPEG."""
    size = f'width="{image.width}" height="{image.height}"'
    look = ' class="small"' if image.width < _SMALL else ""
    described = escape(alt or str(caption))
    picture = Html(f'<img src="{data_uri(image, photo=photo)}" alt="{described}" {size}{look}>')
    return tag("figure", picture, *([tag("figcaption", caption)] if caption else []))


def chips(words: Sequence[object]) -> Html:
    """Return short labels in frames."""
    return tag("div", *(tag("span", word, cls="chip") for word in words), cls="chips")


def swatch(colour: tuple[int, int, int]) -> Html:
    """Return a small coloured square, for legends."""
    return Html(f'<span class="swatch" style="background:rgb{colour}"></span>')


def table(rows: Sequence[Mapping[str, object]]) -> Html:
    """Return a table of named values; numbers are right-aligned."""
    columns = list(dict.fromkeys(key for entry in rows for key in entry))
    numeric = {
        column: "number" if all(_is_number(entry.get(column)) for entry in rows) else ""
        for column in columns
    }
    head = tag("tr", *(tag("th", column, cls=numeric[column]) for column in columns))
    body = (
        tag("tr", *(tag("td", _cell(entry.get(c)), cls=numeric[c]) for c in columns))
        for entry in rows
    )
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), cls="scroll")


def details(summary: str, *parts: object) -> Html:
    """Return a section that unfolds on a click."""
    return tag("details", tag("summary", summary), *parts)


def link(address: str, *parts: object) -> Html:
    """Return a link."""
    return Html(f'<a href="{escape(address)}">{"".join(map(html, parts))}</a>')


def data_uri(image: Image.Image, *, photo: bool = False) -> str:
    """Return an image as a PNG (`photo`: JPEG) data URL."""
    buffer, kind = BytesIO(), "JPEG" if photo else "PNG"
    image.save(buffer, kind)  # `optimize` of PNG is four times slower, for a sixth less
    return f"data:image/{kind.lower()};base64,{b64encode(buffer.getvalue()).decode()}"


def write_page(path: str | Path, content: Html) -> Path:
    """Write a page, creating its folder."""
    return write_text(path, content)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> object:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else value
