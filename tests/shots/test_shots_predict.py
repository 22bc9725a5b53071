"""`eligo.shots.predict` with every kind of selector, pool and image."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shot_cases import save_clip
from shot_hosts import picture
from teach_cases import embedded

from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.shots import (
    KNN,
    LearnedSelector,
    PointerSelectorV1Config,
    Pool,
    build_model_v1,
    embed_texts,
    predict,
)
from eligo.shots.data.items import Item
from eligo.shots.inference.embed import embed, open_embedded
from eligo.shots.inference.encoders import open_encoder
from eligo.shots.inference.load import TRAINING_FREE

QUESTION = "what is number 7?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return embedded(tmp_path / "embedded")


def model(width: int = 768):
    return build_model_v1(PointerSelectorV1Config(d_model=width, hidden_dim=8)).eval()


@pytest.mark.parametrize("name", TRAINING_FREE)
def test_training_free_selectors_by_name(name: str, folder: Path, tmp_path: Path):
    found = predict(QUESTION, selector=name, shots=folder, num_shots=3)
    pool = open_embedded(folder)[0]
    count = 0 if name == "zero_shot" else 3
    names = [found.candidates[place] for place in found.selection.indices.tolist()]
    assert [row["id"] for row in found.chosen] == names
    assert len(names) == len(set(names)) == count
    assert found.selection.scores.shape == (len(pool),)
    assert found.summary()["among"] == "all 18 examples"
    (stage,) = load_record(find_records(found.save(tmp_path / "out"))[0]).stages
    assert stage.selection.indices.tolist() == found.selection.indices.tolist()
    if name == "knn":
        assert names[0] == "t7"


def test_models_selectors_and_pools(folder: Path, tmp_path: Path):
    pool, pointer = open_embedded(folder)[0], model()
    pointer.save_pretrained(tmp_path / "model")
    selector = LearnedSelector.of(pointer, pool)
    selector.save(tmp_path / "selector")
    expected = predict(QUESTION, selector=selector, encoder="words", num_shots=2).summary()
    assert [row["pick"] for row in expected["chosen"]] == [1, 2]
    for given, shots in (
        (tmp_path / "selector", None),
        (tmp_path / "model", folder),
        (str(tmp_path / "model"), pool),
        (pointer, folder),
        (selector, pool),
    ):
        found = predict(QUESTION, selector=given, shots=shots, encoder="words", num_shots=2)
        assert found.summary() == expected
    assert len(predict(QUESTION, selector=pointer, shots=folder).chosen) == 6
    few = predict(QUESTION, selector=pointer, shots=folder, num_candidates=4)
    assert len(few.candidates) == len(few.chosen) == 4


def test_too_many_shots_give_a_warning(folder: Path, caplog):
    with caplog.at_level(logging.WARNING, "eligo.shots"):
        found = predict(QUESTION, selector="knn", shots=folder, num_shots=99)
    assert len(found.chosen) == 18
    assert "num_shots: got 99, but there are only 18 candidates (all 18 examples)" in caplog.text
    caplog.clear()
    predict(QUESTION, selector="knn", shots=folder, num_shots=18)
    assert not caplog.text


def test_image_as_file_or_in_memory(tmp_path: Path):
    save_clip(str(tmp_path / "clip"))
    items = []
    for n in range(4):
        path = tmp_path / f"{n}.png"
        picture(str(path), n)
        items.append(Item(f"t{n}", f"what {n}?", ("red",), str(path), str(n)))
    clip = str(tmp_path / "clip")
    embed(tmp_path / "embedded", items, None, open_encoder(clip, "cpu"), name=clip)
    opened = Image.open(tmp_path / "3.png").convert("RGB")
    array = np.asarray(opened)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    scores = []
    for image in (tmp_path / "3.png", str(tmp_path / "3.png"), opened, array, tensor):
        found = predict(
            "what?", image, selector="knn", shots=tmp_path / "embedded", device="cpu", num_shots=4
        )
        assert found.picture is not None
        assert found.picture.size == opened.size
        scores.append(found.pool_selection.scores)
    assert all(torch.equal(each, scores[0]) for each in scores)
    with pytest.raises(InputError, match="got no image, but the examples have image, text"):
        predict("what?", selector="knn", shots=tmp_path / "embedded", device="cpu")


def test_mistakes_are_refused(folder: Path, tmp_path: Path):
    pool = Pool(["a", "b"], embed_texts(["a", "b"]))
    for options, message in [
        ({"selector": "knn"}, "knn: comes without examples"),
        ({"selector": tmp_path / "no"}, "is not a folder"),
        ({"selector": folder}, "holds no trained selector"),
        ({"selector": model()}, "a model has no examples of its own"),
        ({"selector": "knn", "shots": pool}, "encoder: knn names none"),
        ({"selector": KNN(), "encoder": "words"}, "has no pool yet"),
        ({"selector": model(5), "shots": folder}, "width 5, but .* the examples have width 768"),
        ({"selector": "knn", "shots": pool, "encoder": "words"}, r'name them: Pool\(ids, {"text"'),
        ({"selector": "knn", "shots": tmp_path}, "holds no embedded examples"),
        ({"selector": "knn", "shots": folder, "num_shots": 0}, "num_shots: got 0"),
    ]:
        with pytest.raises(InputError, match=message):
            predict(QUESTION, **options)
    with pytest.raises(InputError, match="question: is empty"):
        predict(" ", selector="knn", shots=folder)
