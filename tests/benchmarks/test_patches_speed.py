"""`benchmarks.patches.speed`, `kernels` and `pooling` at toy sizes."""

import json

import pytest
import torch

from benchmarks.patches import kernels, speed
from benchmarks.patches.speed import bench_kernels, bench_search
from eligo.cli import run_script
from eligo.patches import CrossSparseAggrNet
from eligo.patches.index import ScenePictures, Searcher, build_index
from eligo.patches.model.retrieval_model import RetrievalModel


@pytest.fixture(scope="module")
def script():
    return kernels


def test_kernel_and_search_timings_are_reported(tmp_path):
    model = RetrievalModel.tiny(kind="paper", dense=True).eval()
    encode, speeds = bench_kernels(model, 3, 5, rounds=1)
    assert set(encode) == {"image", "text"}
    assert [speed.kernel for speed in speeds[:2]] == ["reference", "torch"]
    assert speeds[0].speedup == 1
    assert all(speed.largest_difference < 2e-6 for speed in speeds)
    source = ScenePictures.first(12, 56, dense=True)
    build_index(lambda: model, source, tmp_path, shard_size=8)
    found = bench_search(Searcher(model, tmp_path), rerank=5, queries=2)
    assert (found.entries, found.rerank) == (12, 5)
    assert 0 < found.median_ms <= found.p90_ms


def test_speed_command_runs(tmp_path, capsys):
    RetrievalModel.tiny(kind="open").save_pretrained(tmp_path)
    sizes = ["--num_images", "2", "--num_texts", "3", "--rounds", "1", "--json"]
    command = ["--model", str(tmp_path), "--device", "cpu", *sizes]
    assert run_script(speed.run, command) == 0
    assert len(json.loads(capsys.readouterr().out)["matching"]) == 2
    assert run_script(speed.run, ["--model", str(tmp_path), "--num_images", "0"]) == 2
    assert "--num_images: got 0" in capsys.readouterr().err


def test_kernels_command_keeps_other_entries(script, tmp_path, monkeypatch):
    """One entry per size; entries of other sizes are kept."""
    monkeypatch.setattr(script, "NUM_PATCHES", 16)
    monkeypatch.setattr(script, "WIDTH", 32)
    for images in (2, 3):
        script.main(images=images, texts=3, words=6, rounds=1, memory=False, out=tmp_path / "x")
    found = json.loads((tmp_path / "x").read_text("utf-8"))
    assert list(found) == ["cpu float32 2x3", "cpu float32 3x3"]
    for case in found["cpu float32 3x3"]["results"].values():
        assert case["largest_difference"] < 2e-5
        assert case["equal_selections"] == 1


def test_pooling_command_runs(capsys):
    pytest.importorskip("sentence_transformers.multi_vector_encoder")
    from benchmarks.patches import pooling

    pooling.main(smoke=True)
    assert capsys.readouterr().out.count("true_in_top10") == 7


def test_caption_lengths_follow_coco(script):
    lengths = script.coco_lengths(25_000)
    assert abs(float(lengths.float().mean()) - 13) < 0.1
    assert int(lengths.max()) == 52


@pytest.mark.parametrize("paper", [False, True])
def test_streamed_evaluation(script, paper, monkeypatch):
    monkeypatch.setattr(script, "NUM_PATCHES", 9)
    monkeypatch.setattr(script, "WIDTH", 16)
    monkeypatch.setattr(script, "DENSE_WORDS", 4)
    case = script.Case("paper" if paper else "open", 5, 7, 52, "float16")
    found = script._exhaustive(case, chunk=2)
    assert found["longest"] == 52
    net = CrossSparseAggrNet(16, 9, use_paper_version=paper, num_prefix_tokens=1).eval()
    images, words, lengths = (
        torch.randn(5, 10, 16),
        torch.randn(7, 6, 16),
        torch.arange(1, 8) % 6 + 1,
    )
    dense = torch.randn(5, 4, 16) if paper else None
    long = () if dense is None else (dense, torch.full((5,), 4))
    with torch.no_grad():
        expected = net(images, words, lengths, *long).scores
    got = script._stream(net, images, words, lengths, dense, chunk=2)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=0)
