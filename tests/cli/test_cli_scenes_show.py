"""`eligo scenes show` writes a page and a contact sheet, and prints their paths."""

import json

import pytest
from PIL import Image

from eligo.cli import main
from eligo.scenes import SceneConfig, SceneDataset
from eligo.scenes.question_kinds import FAMILIES


def test_show_writes_a_page_and_a_contact_sheet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["scenes", "show", "--scenes", "2"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 3
    for name in ("runs/scenes/index.html", "runs/scenes/contact_sheet.png"):
        assert name in out
    text = (tmp_path / "runs/scenes/index.html").read_text(encoding="utf-8")
    item = SceneDataset(SceneConfig(), "validation", 2)[1]
    assert item.captions[0] in text
    assert item.dense_caption in text
    for family in FAMILIES:
        assert f"{family}, " in text
    assert "http" not in text
    with Image.open(tmp_path / "runs/scenes/contact_sheet.png") as sheet:
        assert sheet.width > 4 * 200
        assert sheet.height > 2 * 200


def test_out_and_json(tmp_path, capsys):
    assert main(["scenes", "show", "--scenes", "1", "--out", str(tmp_path / "a b"), "--json"]) == 0
    message = json.loads(capsys.readouterr().out)
    assert message["page"] == str(tmp_path / "a b" / "index.html")
    assert (tmp_path / "a b" / "contact_sheet.png").exists()


@pytest.mark.parametrize("scenes", ["0", "101"])
def test_number_of_scenes_is_limited(tmp_path, capsys, scenes):
    assert main(["scenes", "show", "--scenes", scenes, "--out", str(tmp_path)]) == 2
    assert "expected 1 to 100" in capsys.readouterr().err


def test_unwritable_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["scenes", "show", "--scenes", "1", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_one_scene_is_singular(tmp_path, capsys):
    assert main(["scenes", "show", "--scenes", "1", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("1 scene with depth")
