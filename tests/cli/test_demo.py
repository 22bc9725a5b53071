"""`eligo demo` from end to end, with tiny random models in place of the shipped ones."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eligo.cli import main
from eligo.cli.demo import PARTS, page, patches, pixels, tokens
from eligo.explorer.folder import find_records, load_record
from eligo.pretrained import load as pretrained
from eligo.scenes.words import TWINS
from shipped_models import MAKERS, make_models

PHOTOS = "real photos"
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
    """Small data sets; `--quick` takes a quarter of them."""
    sizes = {tokens: ("_QUESTIONS", 24), patches: ("_IMAGES", 64), pixels: ("_ROOMS", 16)}
    with pytest.MonkeyPatch.context() as patch:
        for module, (name, count) in sizes.items():
            patch.setattr(module, name, count)
            patch.setattr(module, "_RECORDS", 2)
        patch.setattr(tokens, "_BLIND_SCENES", 40)
        yield


@pytest.fixture(scope="module")
def demo_folder(small: None, shipped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "SHIPPED", shipped)
        torch.set_num_threads(1)
        assert main(["demo", "--quick", "--out", str(out), "--seed", "7"]) == 0
    return out


def results(out: Path) -> dict:
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_every_part_has_its_methods_and_scores(demo_folder: Path):
    found = results(demo_folder)
    assert [part["name"] for part in found["parts"]] == list(PARTS)
    for part in found["parts"]:
        assert [row["method"] for row in part["rows"]] == METHODS[part["name"]]
        assert any(row["is_ours"] for row in part["rows"])
        for row in part["rows"]:
            assert 0 <= row["low"] <= row["score"] <= row["high"] <= 1
    assert found["seed"] == 7
    assert found["command"]


def test_pruned_methods_cost_less_than_the_whole_model(demo_folder: Path):
    whole, *others, blind = results(demo_folder)["parts"][0]["rows"]
    assert blind["flops"] is None
    assert whole["flops"] == 1
    for row in others:
        assert 0 < row["flops"] < 1
        assert row["seconds"] > 0


def test_page_shows_every_part(demo_folder: Path):
    kinds = [load_record(folder).kind for folder in find_records(demo_folder)]
    assert list(dict.fromkeys(kinds)) == [PHOTOS, *PARTS]
    text = (demo_folder / "index.html").read_text(encoding="utf-8")
    titles = [title for part in results(demo_folder)["parts"] for title in part["records"]]
    for title in titles + [record.title for record in page.photos()]:
        assert json.dumps(title)[1:-1] in text


def test_rooms_are_shown_with_swapped_twin_names(demo_folder: Path):
    rooms = [one for one in map(load_record, find_records(demo_folder)) if one.kind == "pixels"]
    other = {**TWINS, **{second: first for first, second in TWINS.items()}}
    swapped = 0
    for room in rooms:
        assert list(room.pictures)[-3:] == ["without tags", "twins' other names", "the truth"]
        swaps = [one.who.removeprefix("with other tags: ").split(", ") for one in room.answers[2:]]
        own = set(room.query.split(", "))
        assert swaps == [] or [set(swaps[0])] == [{other.get(word, word) for word in own}]
        swapped += len(swaps)
    assert swapped


def test_second_run_in_the_same_folder_gives_the_same_scores(
    shipped: Path, demo_folder: Path, monkeypatch, capsys
):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    before, records = results(demo_folder), find_records(demo_folder)
    (demo_folder / "explore" / "99_old").mkdir()
    assert main(["demo", "--quick", "--out", str(demo_folder), "--seed", "7", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after == results(demo_folder)
    assert find_records(demo_folder) == records
    assert not (demo_folder / "explore" / "99_old").exists()

    def scores(found: dict) -> list:
        return [[row["score"] for row in part["rows"]] for part in found["parts"]]

    assert scores(after) == scores(before)


def test_folder_with_other_files_is_refused_before_any_work(
    tmp_path: Path, shipped, monkeypatch, capsys
):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path / "none")
    (tmp_path / "explore").mkdir()
    (tmp_path / "explore" / "mine.txt").write_text("mine")
    for part in ("tokens", "shots", "patches", "pixels"):  # refused before any work
        monkeypatch.setattr(f"eligo.cli.demo.{part}.run", lambda _: pytest.fail("worked"))
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "explore already holds" in capsys.readouterr().err
    assert (tmp_path / "explore" / "mine.txt").exists()


def test_missing_models_are_reported(shipped: Path, tmp_path: Path, monkeypatch, capsys):
    some = tmp_path / "models"
    some.mkdir()
    (some / "vlm").symlink_to(shipped / "vlm")
    monkeypatch.setattr(pretrained, "SHIPPED", some)
    assert main(["demo", "--quick", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out.count("no trained model is shipped yet") == len(PARTS) - 1
    tokens, *others = results(tmp_path / "out")["parts"]
    expected = [method for method in METHODS["tokens"] if method != "tokens_small"]
    assert [row["method"] for row in tokens["rows"]] == expected
    assert not any(row["is_ours"] for row in tokens["rows"])
    assert "No trained plan is shipped yet" in tokens["note"]
    assert all(part["rows"] == part["records"] == [] for part in others)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "tokens_small"])
def test_part_with_a_missing_model_has_no_rows(
    name: str, shipped: Path, tmp_path: Path, monkeypatch
):
    """A part without its models has no rows; the other parts are not run."""
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


def test_demo_without_shipped_models(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", tmp_path)
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    assert "index.html" in capsys.readouterr().out
    shown = [load_record(folder) for folder in find_records(tmp_path / "out")]
    assert [record.kind for record in shown] == [PHOTOS] * 2


def test_photos_are_small_and_their_licence_and_origin_are_said():
    folders = find_records(page.PHOTOS)
    licences = (page.PHOTOS / "README.md").read_text(encoding="utf-8")
    photos = [folder / "photo.jpg" for folder in folders]
    for photo in photos:
        assert f"| `{photo.parent.name}/{photo.name}` |" in licences
    assert sum(photo.stat().st_size for photo in photos) < 200_000
    for record in page.photos():
        assert record.query.startswith("Real photo, real vision tower (DINOv2-small")
        assert "precomputed" in record.query
        assert record.answers == ()
        assert len(record.stages) == 10


@pytest.mark.parametrize("flag", ["--images", "--model", "--plan"])
def test_flags_that_need_questions_are_refused_without_them(flag: str, tmp_path: Path, capsys):
    assert main(["demo", "--out", str(tmp_path), flag, str(tmp_path)]) == 2
    assert f"{flag} can be given only with --questions" in capsys.readouterr().err


def test_unwritable_folder_is_refused(tmp_path: Path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
