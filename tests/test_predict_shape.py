"""`predict` has one shape in all families: images of any kind, one kind of result, one folder."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eligo import patches, pixels, shots, tokens
from eligo.explorer.folder import find_records
from eligo.scenes import SceneConfig, SceneDataset
from eligo.selection import Selection

FAMILIES = (tokens, patches, pixels, shots)
SCENE = SceneDataset(SceneConfig(height=96, width=128), "validation", 1)[0]


@pytest.fixture(scope="module")
def examples() -> shots.Pool:
    texts = ["is it red?", "is it blue?", "how many balls?", "what shape is it?"]
    return shots.Pool(texts, {"text": shots.embed_texts(texts)})


def predict(family, image, examples):
    if family is tokens:
        return tokens.predict(image, "is there a ball?", model="vlm", method="uniform", budget=64)
    if family is patches:
        return patches.predict(image, "there is a red ball.", model="patches")
    if family is pixels:
        return pixels.predict(image, tags=["wall", "ball"], model="pixels")
    return shots.predict(
        "is it green?", selector="knn", shots=examples, num_shots=2, encoder="words"
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_signature(family):
    kinds = {p.name: p.kind for p in inspect.signature(family.predict).parameters.values()}
    assert kinds["selector" if family is shots else "model"] is inspect.Parameter.KEYWORD_ONLY
    assert "image" in kinds


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_result(family, examples, tmp_path):
    result = predict(family, SCENE.rgb, examples)
    assert isinstance(result.selection, Selection)
    summary = json.loads(json.dumps(result.summary()))
    folder = result.save(tmp_path / "out")
    assert folder == tmp_path / "out"
    saved = json.loads((folder / "result.json").read_text("utf-8"))
    assert summary.items() <= saved.items()
    assert len(find_records(folder)) == 1


@pytest.mark.parametrize("family", FAMILIES[:3], ids=lambda family: family.__name__)
def test_images_of_any_kind(family, examples, tmp_path: Path):
    pixels_of_scene = np.ascontiguousarray(SCENE.rgb.permute(1, 2, 0).numpy())
    path = tmp_path / "scene.png"
    Image.fromarray(pixels_of_scene).save(path)
    kinds = (str(path), path, Image.open(path), pixels_of_scene, SCENE.rgb, SCENE.rgb.float() / 255)
    scores = [predict(family, kind, examples).selection.scores for kind in kinds]
    assert all(torch.equal(score, scores[0]) for score in scores)
