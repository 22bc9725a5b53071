"""Texts longer than the model accepts are logged, once per text."""

import pytest

from eligo.patches import RetrievalModel
from eligo.patches.config import KarpathyDataConfig, PatchesTrainConfig


def test_encoding_logs_cut_texts(caplog):
    model = RetrievalModel.tiny()
    long = "a red ball. " * 16  # 64 word pieces, and [CLS] and [SEP]
    model.encode_texts(["a gem.", long.removesuffix("red ball. ")])
    assert not caplog.records
    for _ in range(2):
        model.encode_texts(["a gem.", long])
    (printed,) = (record.getMessage() for record in caplog.records)
    assert printed.startswith(
        "1 of 2 texts are cut: the longest has 66 word pieces, and the model reads 64: 'a red ball."
    )
    caplog.clear()
    model.encode_texts([long + "a box."], dense=True)
    assert not caplog.records  # dense captions may be longer


def test_batch_of_one_is_refused(tmp_path):
    data = KarpathyDataConfig(captions=tmp_path / "c.json", images=tmp_path)
    with pytest.raises(ValueError, match=r"train\.batch_size: got 1, expected at least 2"):
        PatchesTrainConfig.model_validate({"data": data, "train": {"batch_size": 1}})
