"""`python -m benchmarks.explorer.photos`: what methods keep of photos, recorded beside them."""

from pathlib import Path

from PIL import Image

from benchmarks.explorer.photos import run, tower_methods
from eligo.explorer.folder import RECORD_FILES, find_records, load_record
from shipped_models import VLM, vlm


def test_methods_that_read_the_question_or_the_language_model_are_left_out():
    names = [method.name for method in tower_methods()]
    assert {"tome", "divprune", "visionzip", "hiprune"} < set(names)
    assert not {"fastv", "mmr", "sparsevlm", "none", "oracle", "evs"} & set(names)
    assert names[-3:] == ["random", "uniform", "pool"]


def test_record_refers_to_its_photo_and_holds_no_answer(tmp_path: Path):
    vlm(tmp_path / "vlm", VLM)
    photo = tmp_path / "photos" / "wall" / "photo.jpg"
    photo.parent.mkdir(parents=True)
    Image.effect_noise((90, 90), 80).convert("RGB").save(photo)
    before = photo.read_bytes()
    for _ in range(2):  # a second run replaces the record
        run(model=str(tmp_path / "vlm"), tower="a tiny ViT", budget=9, photos=tmp_path / "photos")
    assert photo.read_bytes() == before
    (folder,) = find_records(tmp_path / "photos")
    assert not list(folder.glob(RECORD_FILES[1]))
    shown = load_record(folder)
    assert shown.title == f"Wall: what {len(shown.stages)} methods keep"
    assert shown.pictures["image"].size == (90, 90)
    assert shown.answers == ()
    assert "a tiny ViT" in shown.query
    assert [stage.name for stage in shown.stages] == [each.name for each in tower_methods()]
    for stage in shown.stages:
        assert len(stage.selection.indices) == 9
        assert stage.note
