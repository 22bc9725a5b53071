"""A segmented image as a record: every cell belongs to the word it attends to most."""

import torch
from PIL import Image, ImageColor

from eligo.explorer.folder import load_record, save_record
from eligo.pixels.inference.predict import PixelsPrediction
from eligo.pixels.inference.record import record
from eligo.report.pixels_picture import class_palette
from eligo.selection import Selection

WORDS = ("ball", "wall", "floor")


def prediction(words=WORDS) -> PixelsPrediction:
    maps = torch.rand(len(words), 4, 6).softmax(0) if words else None
    labels = torch.randint(0, 3, (32, 48)).to(torch.uint8)
    return PixelsPrediction(
        labels=labels,
        confidence=torch.rand(32, 48),
        classes=("wall", "floor", "ball"),
        words=tuple(words),
        tag_maps=maps,
        selection=None if maps is None else Selection.top_k(maps.mean((1, 2))[None], len(words)),
        image=Image.effect_noise((48, 32), 50).convert("RGB"),
        used_depth=True,
    )


def test_maps_and_words_in_the_record(tmp_path):
    found = prediction()
    depth = Image.new("RGB", (48, 32))
    truth = torch.zeros(32, 48, dtype=torch.uint8)
    truth[:8] = 2
    shown = record(found, depth=depth, labels={"truth": truth}, cost={"forward": "3 ms"})
    assert list(shown.pictures) == ["image", "depth", "labels", "truth"]
    shapes = {picture.width / picture.height for picture in shown.pictures.values()}
    assert shapes == {1.5}  # without the legend
    assert [key.text for key in shown.legends["truth"]] == ["wall  75.0 %", "ball  25.0 %"]
    expected = [class_palette(found.classes)[number] for number in (0, 2)]
    assert [ImageColor.getrgb(key.colour) for key in shown.legends["truth"]] == expected
    assert len(shown.legends["labels"]) == 3
    attended, words = shown.stages
    assert attended.over.picture == "image"
    peaks = dict(zip(WORDS, found.tag_maps.amax((1, 2)).tolist(), strict=True))
    assert list(attended.rows) == sorted(WORDS, key=lambda word: -peaks[word])
    owner = found.tag_maps.flatten(1).argmax(0)
    places = []
    for number, row in enumerate(attended.selection.indices.tolist()):
        mine = [place for place in row if place >= 0]
        assert (owner[mine] == WORDS.index(attended.rows[number])).all()
        scores = attended.selection.scores[number][mine]
        assert torch.equal(scores, scores.sort(descending=True).values)
        places += mine
    assert sorted(places) == list(range(24))
    assert [item.text for item in words.over] == list(WORDS)
    assert torch.equal(words.selection.indices, found.selection.indices[0])
    save_record(shown, tmp_path)
    assert load_record(tmp_path).query == "ball, wall, floor"


def test_record_without_words_or_depth():
    shown = record(prediction(()))
    assert shown.stages == ()
    assert shown.query == "no words"
    assert list(shown.pictures) == ["image", "labels"]
