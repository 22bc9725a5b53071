"""`eligo demo` from end to end, on tiny random models in the place of those that are shipped."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eligo.cli import main
from eligo.cli.demo import PARTS, patches, pixels, tokens
from eligo.explorer.folder import find_records, load_record
from eligo.pretrained import load as pretrained
from eligo.scenes.words import TWINS
from shipped_models import MAKERS, make_models

METHODS = {
    "tokens": ["all tokens", "tokens_small", "tome", "visionzip", "no image (blind)"],
    "shots": ["zero-shot", "random", "kNN", "MMR", "pointer v1"],
    "patches": ["one vector each", "all patches", "kept patches"],
    "pixels": ["no tags", "another room's tags", "a tagger's (90 %)", "its own tags"],
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """A few of everything: `--quick` then takes a quarter of that."""
    sizes = {tokens: ("_QUESTIONS", 24), patches: ("_IMAGES", 64), pixels: ("_ROOMS", 16)}
    with pytest.MonkeyPatch.context() as patch:
        for module, (name, count) in sizes.items():
            patch.setattr(module, name, count)
            patch.setattr(module, "_RECORDS", 2)
        patch.setattr(tokens, "_BLIND_SCENES", 40)
        yield


@pytest.fixture(scope="module")
def ran(small: None, shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "SHIPPED", shipped)
        torch.set_num_threads(1)
        assert main(["demo", "--quick", "--out", str(out), "--seed", "7"]) == 0
    return out


def told(out: Path) -> dict:
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_all_parts(ran: Path):
    found = told(ran)
    assert [part["name"] for part in found["parts"]] == list(PARTS)
    for part in found["parts"]:
        assert [row["method"] for row in part["rows"]] == METHODS[part["name"]]
        assert any(row["is_ours"] for row in part["rows"])
        for row in part["rows"]:
            assert 0 <= row["low"] <= row["score"] <= row["high"] <= 1
    assert found["seed"] == 7
    assert found["command"]


def test_the_whole_costs_all_and_the_rest_less(ran: Path):
    whole, *others, blind = told(ran)["parts"][0]["rows"]
    assert blind["flops"] is None
    assert whole["flops"] == 1
    for row in others:
        assert 0 < row["flops"] < 1
        assert row["seconds"] > 0


def test_the_page_shows_every_part(ran: Path):
    kinds = [load_record(folder).kind for folder in find_records(ran)]
    assert list(dict.fromkeys(kinds)) == list(PARTS)
    text = (ran / "index.html").read_text(encoding="utf-8")
    for title in (title for part in told(ran)["parts"] for title in part["records"]):
        assert json.dumps(title)[1:-1] in text


def test_a_room_is_shown_with_its_twins_other_names(ran: Path):
    rooms = [one for one in map(load_record, find_records(ran)) if one.kind == "pixels"]
    other = {**TWINS, **{second: first for first, second in TWINS.items()}}
    swapped = 0
    for room in rooms:
        assert list(room.pictures)[-3:] == ["without tags", "twins' other names", "the truth"]
        told = [one.who.removeprefix("with other tags: ").split(", ") for one in room.answers[2:]]
        own = set(room.query.split(", "))
        assert told == [] or [set(told[0])] == [{other.get(word, word) for word in own}]
        swapped += len(told)
    assert swapped


def test_again_in_the_same_folder(shipped: Path, ran: Path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    before, records = told(ran), find_records(ran)
    (ran / "explore" / "99_old").mkdir()
    assert main(["demo", "--quick", "--out", str(ran), "--seed", "7", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after == told(ran)
    assert find_records(ran) == records
    assert not (ran / "explore" / "99_old").exists()

    def scores(found: dict) -> list:
        return [[row["score"] for row in part["rows"]] for part in found["parts"]]

    assert scores(after) == scores(before)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, shipped, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "none")
    (tmp_path / "explore").mkdir()
    (tmp_path / "explore" / "mine.txt").write_text("mine")
    for part in ("tokens", "shots", "patches", "pixels"):  # it is said before any work
        monkeypatch.setattr(f"eligo.cli.demo.{part}.run", lambda _: pytest.fail("worked"))
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "explore already holds" in capsys.readouterr().err
    assert (tmp_path / "explore" / "mine.txt").exists()


def test_what_is_not_shipped_is_said_not_made_up(
    shipped: Path, tmp_path: Path, monkeypatch, capsys
):
    some = tmp_path / "models"
    some.mkdir()
    (some / "vlm").symlink_to(shipped / "vlm")
    monkeypatch.setattr(pretrained, "SHIPPED", some)
    assert main(["demo", "--quick", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out.count("no trained model is shipped yet") == len(PARTS) - 1
    tokens, *others = told(tmp_path / "out")["parts"]
    expected = [method for method in METHODS["tokens"] if method != "tokens_small"]
    assert [row["method"] for row in tokens["rows"]] == expected
    assert not any(row["is_ours"] for row in tokens["rows"])
    assert "No trained plan is shipped yet" in tokens["note"]
    assert all(part["rows"] == part["records"] == [] for part in others)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "tokens_small"])
def test_any_one_may_be_missing(name: str, shipped: Path, tmp_path: Path, monkeypatch):
    """Without running the others: a part without its models gives no rows."""
    from importlib import import_module

    from eligo.cli.demo.part import DemoSettings

    for other in MAKERS:
        if other != name:
            (tmp_path / other).symlink_to(shipped / other)
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    part = {"vlm": "tokens", "shots_learner": "shots", "shots_v1": "shots"}.get(name, name)
    found = import_module(f"eligo.cli.demo.{part}").run(DemoSettings(7, "cpu", quick=True))
    assert found.rows == ()
    assert found.note == "no trained model is shipped yet"


def test_nothing_is_shipped(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    assert "index.html" not in capsys.readouterr().out
    assert told(tmp_path / "out")["page"] is None


@pytest.mark.parametrize("flag", ["--images", "--model", "--plan"])
def test_flags_of_own_files_want_questions(flag: str, tmp_path: Path, capsys):
    assert main(["demo", "--out", str(tmp_path), flag, str(tmp_path)]) == 2
    assert f"{flag} can be given only with --questions" in capsys.readouterr().err


def test_a_folder_that_cannot_be(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
