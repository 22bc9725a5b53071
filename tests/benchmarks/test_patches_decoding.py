"""The benchmark of decoding runs on small photos."""

import json

import torch

from benchmarks.patches import decoding


def test_smoke(tmp_path):
    threads = torch.get_num_threads()
    decoding.main(photos=2, megapixels=0.1, rounds=1, out=tmp_path / "decoding.json")
    torch.set_num_threads(threads)
    found = json.loads((tmp_path / "decoding.json").read_text())["results"]
    assert {"whole", "twice", "once, 0 workers"} <= found["ms_each"].keys()
