"""The exported page is one self-contained file; data in it is never markup or code."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from explorer_samples import HOSTILE, all_records, pruned
from hypothesis import given
from hypothesis import strategies as st

from eligo.cli import main
from eligo.explorer import export
from eligo.explorer.export import explorer_page, export_run, safe_json
from eligo.explorer.folder import save_record
from eligo.explorer.inline import inline

SOURCES = Path(export.__file__).parent / "page"
LIVE = {"tools": []}


class Parsed(HTMLParser):
    """Collects scripts by type and attributes; checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: dict[str | None, str] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.title = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in {"meta", "br", "img", "link", "input"}:
            self.open.append(tag)
        if tag == "script":
            self.kind = dict(attrs).get("type")
            assert self.kind not in self.scripts, "a script more than there should be"
            self.scripts[self.kind] = ""

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[self.kind] += data
        if self.open and self.open[-1] == "title":
            self.title += data


def test_page_contains_all_records_and_no_references():
    shown = [inline(one) for one in all_records()]
    page = Parsed(explorer_page(shown, title="a run"))
    assert set(page.scripts) == {"application/json", "module"}
    data = json.loads(page.scripts["application/json"])
    assert data["records"] == json.loads(json.dumps(shown))
    assert data["title"] == page.title == "a run"
    assert "live" not in data
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert {name for _, name, _ in page.attributes} & {"src", "srcset", "data", "style"} == set()
    assert [value for _, name, value in page.attributes if name == "href"] == ["#stage"]


def test_page_fetches_nothing():
    text = explorer_page([])
    assert set(re.findall(r"https?://[^\s\"'`]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|<link|<iframe|\bimport\(", text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "connect-src 'none'" in policy[1]
    assert "connect-src 'self'" in explorer_page([], live=LIVE)


def test_policy_has_the_hash_of_the_script():
    text = explorer_page([])
    script = Parsed(text).scripts["module"]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in text


def test_every_source_is_in_the_page():
    text = explorer_page([])
    for path in SOURCES.glob("*.js"):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert text.count(first) == 1, path.name
    for path in SOURCES.glob("*.css"):
        assert path.read_text(encoding="utf-8") in text, path.name
    script = Parsed(text).scripts["module"]
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)


def test_modules_follow_their_imports():
    script = Parsed(explorer_page([])).scripts["module"]
    for path in SOURCES.glob("*.js"):
        for imported in re.findall(r'from "\./(\w+)\.js"', path.read_text(encoding="utf-8")):
            assert script.index(f"// {imported}.js\n") < script.index(f"// {path.name}\n")


def test_imported_names_are_used():
    for path in SOURCES.glob("*.js"):
        source = path.read_text(encoding="utf-8")
        for names in re.findall(r"import \{([^}]*)\}", source):
            for name in re.findall(r"\w+", names):
                assert len(re.findall(rf"\b{name}\b", source)) > 1, f"{path.name}: {name}"


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_json_cannot_close_its_script_element(value):
    text = safe_json(value)
    assert "<" not in text
    assert text.isascii()
    assert json.loads(text) == value
    page = Parsed(explorer_page([{"title": value}]))
    assert json.loads(page.scripts["application/json"])["records"] == [{"title": value}]


@pytest.mark.parametrize("title", [HOSTILE, "{{script}} {{data}}", "a & b", "no \udc80 Unicode"])
def test_titles_are_escaped(title):
    text = explorer_page([{"note": "{{style}}"}], title=title)
    page = Parsed(text.encode().decode())
    assert page.title == title.replace("\udc80", "?")
    assert json.loads(page.scripts["application/json"])["records"] == [{"note": "{{style}}"}]


def test_nan_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        explorer_page([{"score": float("nan")}])


# ------------------------------------------------------------ from a run


def test_export_of_a_run(tmp_path):
    for number, record in enumerate(all_records()):
        save_record(record, tmp_path / "run" / "explore" / f"{number:02d}")
    path = export_run(tmp_path / "run", tmp_path / "new" / "page.html")
    data = json.loads(Parsed(path.read_text(encoding="utf-8")).scripts["application/json"])
    assert [one["title"] for one in data["records"]] == [one.title for one in all_records()]
    assert data["title"] == "run"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_explore_command(tmp_path, capsys, monkeypatch):
    save_record(pruned(), tmp_path / "runs" / "demo" / "explore" / "a")
    monkeypatch.chdir(tmp_path)
    assert main(["explore"]) == 0
    assert "1 record, written: runs/demo/explore.html" in capsys.readouterr().out
    assert (tmp_path / "runs" / "demo" / "explore.html").stat().st_size > 10_000
    assert main(["explore", "runs/demo/explore/a", "--out", "seen.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": "seen.html", "records": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no such folder"),
        (["--live", "--out", "x.html"], "leave out"),
        (["somewhere", "--live"], "leave out"),
        (["--port", "1"], "only --live"),
        (["--model", "mine"], "only --live"),
        (["--live", "--dtype", "bfloat16"], "--dtype: only --model"),
    ],
)
def test_invalid_arguments_are_refused(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explore", *words]) == 2
    assert message in capsys.readouterr().err


def test_live_flags_reach_the_server(monkeypatch):
    from eligo.cli.explorer import live as explore_live

    called = {}
    monkeypatch.setattr(explore_live, "serve", lambda **options: called.update(options))
    assert main(["explore", "--live", "--port", "0", "--device", "cpu"]) == 0
    assert called == {"port": 0, "device": "cpu", "model": None, "dtype": "float32"}
    assert main(["explore", "--live", "--model", "mine", "--dtype", "bfloat16"]) == 0
    assert (called["model"], called["dtype"]) == ("mine", "bfloat16")
