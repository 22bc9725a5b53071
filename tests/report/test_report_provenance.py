"""Provenance of result files: date, versions, device and command."""

import json
import sys
from datetime import date

import torch

import eligo
from eligo.report.provenance import provenance


def test_provenance_has_date_versions_and_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/eligo", "scenes", "--out", "a b.json"])
    head = provenance("eligo")
    assert head["command"] == "eligo scenes --out 'a b.json'"
    assert abs((date.today() - date.fromisoformat(head["date"])).days) <= 1
    assert "cores" in head["hardware"]
    assert head["versions"]["eligo"] == eligo.__version__
    assert head["versions"]["torch"] == torch.__version__
    assert json.loads(json.dumps(head)) == head
    monkeypatch.setattr(sys, "argv", ["benchmarks/scenes/speed.py"])
    assert (
        provenance("python benchmarks/scenes/speed.py")["command"]
        == "python benchmarks/scenes/speed.py"
    )


def test_provenance_names_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert provenance("eligo", "cuda")["hardware"] == "NVIDIA H200"
