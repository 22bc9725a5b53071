"""`benchmarks/patches/export.py` at toy sizes."""

import pytest
import torch

from benchmarks.patches import export
from eligo.patches.model.retrieval_model import RetrievalModel


def test_export_benchmark_runs(tmp_path):
    pytest.importorskip("lancedb")
    pytest.importorskip("qdrant_client")
    torch.manual_seed(0)
    found = export.measure(RetrievalModel.tiny().eval(), 24, 3, tmp_path)
    assert found["exhaustive"]["exhaustive_top10_in_first_10"][0] == 1
    assert found["two stages"]["exhaustive_top10_in_first_10"][0] == 1  # R is all of them
    for name in ("lancedb", "qdrant"):
        assert 0 <= found[name]["exhaustive_top10_in_first_10"][0] <= 1
        assert found[name]["exhaustive_top10_in_first_128"][0] == 1
