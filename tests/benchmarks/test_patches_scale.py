"""The benchmark of large indexes runs on a small one."""

import json

import pytest
import torch

from benchmarks.patches import scale
from eligo.patches.index import ScenePictures, build_index
from eligo.patches.model.retrieval_model import RetrievalModel


def test_smoke(tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    model = RetrievalModel.tiny(kind="late").eval()
    model.save_pretrained(tmp_path / "model")
    build_index(lambda: model, ScenePictures.first(40, 56), tmp_path / "index", shard_size=16)
    (tmp_path / "texts.txt").write_text("a red ball.\na blue box.\na gem.\n")
    out = tmp_path / "scale.json"
    threads = torch.get_num_threads()
    arguments = tmp_path / "index", str(tmp_path / "model"), tmp_path / "texts.txt"
    scale.main(*arguments, vectors=3000, entries=700, num_queries=3, threads=1, out=out)
    torch.set_num_threads(threads)
    found = json.loads(out.read_text())["results"]
    assert found["vectors"]["lists"] == 11
    assert found["vectors"]["texts"]["faiss"][-1]["lists_read"] == 6
    assert found["index"]["entries"] == 700
    assert 0 <= found["index"]["top10_of_exact_first_stage_found"] <= 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")] == []


def test_noise_makes_neighbours():
    """A multiplied photo is as similar to its origin as photos are to their neighbours."""
    torch.manual_seed(1)
    photos = torch.nn.functional.normalize(torch.randn(200, 16) + 1, dim=1)
    noise, cosine = scale.amount_of_noise(photos)
    new = scale.multiplied(photos, 500, noise)
    assert new.norm(dim=1).allclose(torch.ones(500))
    old = scale.draw(500, 200, 0)[0]
    assert float((new * photos[old]).sum(1).median()) == pytest.approx(cosine, abs=0.03)
    assert not torch.equal(new[:100], new[100:200])
