"""Explorer records: rows of the pool become positions among the candidates."""

import pytest
import torch
from PIL import Image

from eligo.explorer.folder import load_record, save_record
from eligo.explorer.record import Answer
from eligo.shots import Pool, Query
from eligo.shots.baselines import KNN, Random, ZeroShot
from eligo.shots.inference.record import record


@pytest.fixture
def pool():
    payload = [{"question": f"what is {name}?", "answer": name} for name in "abcdef"]
    return Pool(list("abcdef"), torch.eye(6), payload=payload)


def test_picks_are_positions_among_the_candidates(pool, tmp_path):
    query = Query("q", torch.tensor([0.0, 0.1, 0.9, 0.2, 0.5, 0.0]))
    names = ["e", "b", "c"]
    chosen = {
        kind: selector.fit([], pool).select(query, 2, candidates=names)
        for kind, selector in {"kNN": KNN(), "random": Random(), "none": ZeroShot()}.items()
    }
    image = Image.new("RGB", (8, 8))
    shown = record(
        "what is it?", pool, names, chosen, picture=image, pictures={"b": image, "a": image},
        answers=[Answer("zero-shot", "a", False)], cost={"candidates": "3"},
    )  # fmt: skip
    near, chance, none = shown.stages
    assert [item.text for item in near.over] == [f"what is {n}? {n}" for n in names]
    assert [item.picture for item in near.over] == [None, "b", None]
    assert list(shown.pictures) == ["question", "b"]  # "a" is not a candidate
    assert near.selection.indices.tolist() == [2, 0]  # c, then e
    expected = pool.vectors[pool.rows(names)] @ query.vector
    torch.testing.assert_close(near.selection.scores, expected)
    assert len(chance.selection.indices) == 2
    assert none.selection.indices.tolist() == []
    assert none.name == "none"
    save_record(shown, tmp_path)
    assert load_record(tmp_path).stages[0].over == near.over
