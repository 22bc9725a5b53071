"""Exported files, read back with json and Pillow, agree with the scene graph."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.config import load_config, read_layer, shipped_configs
from eligo.errors import ConfigError, EligoError, InputError
from eligo.scenes import (
    ROOMS,
    SceneConfig,
    draw_captions,
    draw_dense_captions,
    draw_questions,
    draw_scenes,
    label_names,
    render,
)
from eligo.scenes import export as scene_export
from eligo.scenes.export import ExportConfig, export_scenes
from eligo.scenes.formats import FORMATS

SMALL = SceneConfig(height=48, width=64)
SPLITS = {"train": 5, "validation": 2, "test": 3}
ROOM = ROOMS.replace({"height": 48, "width": 64})


def export(folder: Path, kind: str, **changes) -> ExportConfig:
    rooms = kind in ("nyu", "sun")
    config = ExportConfig(format=kind, scenes=ROOM if rooms else SMALL, **SPLITS, **changes)
    result = export_scenes(config, folder)
    assert result.scenes == 10
    assert not list(folder.rglob(".*"))  # no temporary file
    return config


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_vqa_files_match_the_scenes(tmp_path):
    export(tmp_path, "vqa", questions=4)
    for split, (folder, first) in {
        "train": ("train2014", 1),
        "validation": ("val2014", 1_000_001),
        "test": ("test2015", 2_000_001),
    }.items():
        size = SPLITS[split]
        listed = json.loads((tmp_path / f"v2_OpenEnded_mscoco_{folder}_questions.json").read_text())
        annotated = json.loads((tmp_path / f"v2_mscoco_{folder}_annotations.json").read_text())
        assert listed["task_type"] == "Open-Ended"
        assert listed["data_subtype"] == annotated["data_subtype"] == folder
        graph = draw_scenes(SMALL, split, range(size))
        drawn, rgb = draw_questions(graph, 4), render(graph).rgb
        expected = [
            (first + scene, drawn.text(scene, place), drawn.answer_text(scene, place))
            for scene in range(size)
            for place in range(4)
            if drawn.valid[scene, place]
        ]
        answers = {a["question_id"]: a for a in annotated["annotations"]}
        assert len(answers) == len(listed["questions"]) == len(expected)
        for question, (image, text, answer) in zip(listed["questions"], expected, strict=True):
            assert (question["image_id"], question["question"]) == (image, text)
            annotation = answers[question["question_id"]]
            assert annotation["image_id"] == image
            assert annotation["multiple_choice_answer"] == answer
            assert [a["answer"] for a in annotation["answers"]] == [answer] * 10
            assert [a["answer_id"] for a in annotation["answers"]] == list(range(1, 11))
            assert annotation["answer_type"] in ("yes/no", "number", "other")
            assert text.startswith(annotation["question_type"])
        names = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert names == [f"COCO_{folder}_{first + i:012d}.jpg" for i in range(size)]
        for scene, name in enumerate(names):
            image = read(tmp_path / folder / name).astype(int)
            difference = np.abs(image - rgb[scene].permute(1, 2, 0).numpy())
            assert difference.mean() < 4  # JPEG


def test_answer_types_follow_the_answers(tmp_path):
    export(tmp_path, "vqa", questions=16)
    annotated = json.loads((tmp_path / "v2_mscoco_train2014_annotations.json").read_text())
    for annotation in annotated["annotations"]:
        answer = annotation["multiple_choice_answer"]
        kind = "yes/no" if answer in ("yes", "no") else "number" if answer.isdigit() else "other"
        assert annotation["answer_type"] == kind
    assert len(Counter(a["answer_type"] for a in annotated["annotations"])) == 3


def test_caption_files_match_the_scenes(tmp_path):
    export(tmp_path, "captions", captions=5, image="png")
    content = json.loads((tmp_path / "dataset_scenes.json").read_text())
    dense = {row["image_id"]: row for row in lines(tmp_path / "dense_captions.jsonl")}
    assert Counter(i["split"] for i in content["images"]) == {"train": 5, "val": 2, "test": 3}
    assert [image["imgid"] for image in content["images"]] == list(range(10))
    sentence_ids = [number for image in content["images"] for number in image["sentids"]]
    assert sentence_ids == list(range(50))
    images = iter(content["images"])
    for split, size in SPLITS.items():
        graph = draw_scenes(SMALL, split, range(size))
        captions, full = draw_captions(graph, 5), draw_dense_captions(graph)
        rgb = render(graph).rgb.permute(0, 2, 3, 1).numpy()
        for scene in range(size):
            image = next(images)
            assert (read(tmp_path / "images" / image["filename"]) == rgb[scene]).all()
            assert [s["sentid"] for s in image["sentences"]] == image["sentids"]
            assert {s["imgid"] for s in image["sentences"]} == {image["imgid"]}
            raw = [s["raw"] for s in image["sentences"]]
            assert raw == [captions.text(scene, place) for place in range(5)]
            for sentence in image["sentences"]:
                words = sentence["raw"].rstrip(".").replace(",", "").split()
                assert sentence["tokens"] == words
            row = dense[image["imgid"]]
            assert row["text"] == full.text(scene)
            assert set(row) == {"image_id", "text", "model", "prompt"}


@pytest.mark.parametrize(
    ("kind", "labels", "options"),
    [
        ("nyu", "Label", {"depth": "metric", "sensor": True}),
        ("nyu", "Label", {"depth": "png8", "image": "png"}),
        ("sun", "labels", {"image": "png"}),
        ("sun", "labels", {"sensor": True}),
    ],
)
def test_room_folders_match_the_scenes(tmp_path, kind, labels, options):
    config = export(tmp_path, kind, **options)
    names = (tmp_path / "classes.txt").read_text().split()
    assert tuple(names) == label_names(ROOM)
    tags = {row["id"]: row["tags"] for row in lines(tmp_path / "tags.jsonl")}
    for split, short in (("train", "train"), ("validation", "val"), ("test", "test")):
        rendered = render(draw_scenes(ROOM, split, range(SPLITS[split])))
        depth, valid = rendered.depth, torch.ones_like(rendered.depth, dtype=torch.bool)
        if config.sensor:
            depth, valid = rendered.sensor_depth()
        rows = (tmp_path / f"{short}.txt").read_text().splitlines()
        assert len(rows) == SPLITS[split]
        for scene, row in enumerate(rows):
            rgb_path, label_path = row.split()
            assert rgb_path.startswith("RGB/")
            assert label_path.startswith(f"{labels}/")
            scene_id = Path(rgb_path).stem
            assert Path(label_path).stem == scene_id
            image = read(tmp_path / rgb_path)
            label = read(tmp_path / label_path)
            disk = read(tmp_path / "Depth" / f"{scene_id}.png")
            assert image.shape[:2] == label.shape == disk.shape == (48, 64)
            assert (label == rendered.labels[scene].numpy() + 1).all()  # 0 means ignore
            assert {names[value - 1] for value in np.unique(label)} <= set(tags[scene_id])
            metres = depth[scene].numpy()
            if config.depth == "png8":
                assert disk.dtype == np.uint8
                assert np.abs(disk / 255 * 10 - metres).max() <= 10 / 255 / 2 + 1e-6
                continue
            raw = disk.astype(np.uint16)
            millimetres = (raw >> 3) | (raw << 13) if kind == "sun" else raw
            assert disk.max() > 255
            assert ((millimetres > 0) == valid[scene].numpy()).all()
            error = np.abs(millimetres / 1000 - metres)
            assert error.max() <= 0.0005 + 1e-6


def test_json_lines_match_the_scenes(tmp_path):
    export(tmp_path, "jsonl", image="png", questions=3, captions=2)
    graph = draw_scenes(SMALL, "test", range(3))
    rendered, drawn = render(graph), draw_questions(graph, 3)
    captions, dense = draw_captions(graph, 2), draw_dense_captions(graph)
    rows = lines(tmp_path / "test.jsonl")
    questions = lines(tmp_path / "test_questions.jsonl")
    assert [row["id"] for row in rows] == ["test_000000", "test_000001", "test_000002"]
    for scene, row in enumerate(rows):
        rgb = rendered.rgb[scene].permute(1, 2, 0).numpy()
        assert (read(tmp_path / row["image"]) == rgb).all()
        assert (read(tmp_path / row["label"]) == rendered.labels[scene].numpy() + 1).all()
        millimetres = (rendered.depth[scene] * 1000).round().numpy()
        assert (read(tmp_path / row["depth"]) == millimetres).all()
        assert row["captions"] == [captions.text(scene, place) for place in range(2)]
        assert row["dense_caption"] == dense.text(scene)
        mine = [q for q in questions if q["image"] == row["image"]]
        valid = [place for place in range(3) if drawn.valid[scene, place]]
        assert [q["question"] for q in mine] == [drawn.text(scene, place) for place in valid]
        assert [q["answers"] for q in mine] == [[drawn.answer_text(scene, p)] for p in valid]
    assert len({q["id"] for q in questions}) == len(questions)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_stopped_export_resumes_to_the_same_files(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    config = export(whole, "jsonl")

    def stop(done: int) -> None:
        if done > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_scenes(config, broken, stop)
    assert not (broken / "train.jsonl").exists()  # the index is written last
    half = broken / "images" / ".eligo-0123456789ab.tmp"
    half.mkdir()
    (half / "train_000003.jpg").write_bytes(b"half a file")
    (broken / "images" / "train_000003.jpg").unlink()
    result = export_scenes(config, broken)
    assert 0 < result.pictures_written < 30
    assert result.pictures_written + result.pictures_found == 30
    assert contents(broken) == contents(whole)
    assert export_scenes(config, broken).pictures_written == 0


def test_ray_writes_the_same_bytes_and_resumes(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    local, spread = tmp_path / "local", tmp_path / "ray"
    monkeypatch.setattr(scene_export, "_CHUNK_PIXELS", 2 * 48 * 64)  # two scenes per shard
    config = export(local, "jsonl")
    done = []
    result = export_scenes(config, spread, done.append, engine="ray", num_workers=2)
    assert (result.pictures_written, result.pictures_found) == (30, 0)
    assert done == [2, 4, 5, 7, 9, 10]
    assert contents(spread) == contents(local)
    (spread / "images" / "test_000002.jpg").unlink()
    again = export_scenes(config, spread, engine="local")
    assert (again.pictures_written, again.pictures_found) == (1, 29)
    assert contents(spread) == contents(local)


def test_export_can_be_extended(tmp_path):
    config = export(tmp_path / "grown", "nyu")
    more = config.replace({"train": 7})
    assert export_scenes(more, tmp_path / "grown").pictures_written == 6
    export_scenes(more, tmp_path / "at once")
    assert contents(tmp_path / "grown") == contents(tmp_path / "at once")


def test_other_folders_are_refused(tmp_path):
    config = export(tmp_path / "export", "nyu")
    before = contents(tmp_path / "export")
    for change, named in (
        ({"scenes.seed": 4}, "scenes.seed 0 there, 4 now"),
        ({"train": 1}, "train 5 there, 1 now"),
        ({"depth": "png8"}, "depth 'metric' there, 'png8' now"),
    ):
        with pytest.raises(InputError, match=named):
            export_scenes(config.replace(change), tmp_path / "export")
    assert contents(tmp_path / "export") == before
    with pytest.raises(InputError, match="holds other files and no export"):
        export_scenes(config, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        export_scenes(config, tmp_path / "file")
    (tmp_path / "export" / "export.json").write_text("[]")
    with pytest.raises(InputError, match="not the manifest of an export"):
        export_scenes(config, tmp_path / "export")


def test_full_disk_is_reported_as_an_eligo_error(tmp_path, monkeypatch):
    def fail(self, data):
        raise OSError(28, "No space left on device")

    config = ExportConfig(format="nyu", scenes=ROOM, **SPLITS)
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(EligoError, match=r"No space left on device.*run it again"):
        export_scenes(config, tmp_path / "export")


def test_contradictory_configs_are_refused():
    for changes, message in (
        ({"format": "sun", "depth": "png8"}, "encoding of its own"),
        ({"train": 0, "validation": 0, "test": 0}, "nothing to export"),
        ({"scenes": {"painted": 1}}, "painted"),
        ({"formt": "nyu"}, "did you mean"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_config(ExportConfig, changes)
    load_config(ExportConfig, {"format": "nyu", "scenes": {"painted": 1}})


EXPORTS = [
    name
    for name in shipped_configs("scenes")
    if read_layer(f"scenes/{name}").tree["task"] == "scenes.export"
]


def test_every_format_has_a_shipped_config():
    assert sorted(EXPORTS) == sorted(FORMATS)


@pytest.mark.parametrize("name", EXPORTS)
def test_every_shipped_config_exports(tmp_path, name):
    config = load_config(ExportConfig, f"scenes/{name}")
    assert config.format == name
    small = config.smoke().replace({"scenes.height": 48, "scenes.width": 48})
    assert export_scenes(small, tmp_path).scenes == 6


def test_room_configs_use_the_room_world():
    for name in ("nyu", "sun"):
        assert load_config(ExportConfig, f"scenes/{name}").scenes == ROOMS


def test_damaged_manifest_is_refused(tmp_path):
    config = ExportConfig(format="captions", scenes=SMALL, train=1, validation=0, test=0)
    export_scenes(config, tmp_path)
    manifest = tmp_path / "export.json"
    about = json.loads(manifest.read_text())
    about["config"]["train"] = "x"
    manifest.write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"not the manifest of an export .*'x'"):
        export_scenes(config, tmp_path)
