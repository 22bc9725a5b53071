"""Write the explorer page: one HTML file with its styles, scripts and data.

The sources in `page/` are an HTML template, style sheets and JavaScript modules. The modules are
joined in import order, without `import` and `export`, so that the page needs no server and no build
tool. The content security policy allows only this script, by its hash: data cannot run as code, and
nothing is fetched (a live page may call its own server).
"""

import json
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from eligo import __version__
from eligo.explorer.folder import find_records, load_record
from eligo.explorer.inline import inline
from eligo.io.files import write_text

_STYLES = tuple(
    f"{part}.css" for part in ("base", "layout", "sidebar", "controls", "board", "items", "live")
)
_MAIN = "main"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)


def export_run(run: str | Path, out: str | Path) -> Path:
    """Write the page of all records of a run (or of one record's folder)."""
    folders = find_records(run)
    records = [inline(load_record(folder)) for folder in folders]
    return write_text(out, explorer_page(records, title=Path(os.path.realpath(run)).name))


def explorer_page(
    records: Sequence[Mapping[str, Any]],
    *,
    title: str = "explorer",
    live: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of inlined records; `live` adds a form to make more (docs/explorer.md)."""
    title = title.encode(errors="replace").decode()  # folder names need not be UTF-8
    data = {"title": title, "version": __version__, "records": list(records)}
    parts = {
        "title": escape(title),
        "policy": _policy(is_live=live is not None),
        "style": "\n".join(map(_source, _STYLES)),
        "script": _script(),
        "data": safe_json(data if live is None else {**data, "live": live}),
    }
    # One pass, so that data cannot contain placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def safe_json(value: object) -> str:
    """Return JSON that is safe inside a script element: `<` is escaped."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


@cache
def _script() -> str:
    """Join all modules; each follows those that it imports."""
    joined: dict[str, str] = {}

    def add(name: str) -> None:
        if name in joined:
            return
        source = _source(f"{name}.js")
        for imported in _IMPORT.findall(source):
            add(imported)
        joined[name] = _EXPORT.sub("", _IMPORT.sub("", source)).strip()

    add(_MAIN)
    return "\n\n".join(f"// {name}.js\n{source}" for name, source in joined.items())


def _policy(*, is_live: bool) -> str:
    digest = b64encode(sha256(f"\n{_script()}\n".encode()).digest()).decode()
    connect = "'self'" if is_live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def _source(name: str) -> str:
    return files("eligo.explorer").joinpath("page", name).read_text(encoding="utf-8")
