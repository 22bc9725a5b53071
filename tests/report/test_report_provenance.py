"""Provenance of result files: date, versions, device and command."""

import json
import sys
from datetime import date
from types import SimpleNamespace

import torch

import eligo
from eligo.report.provenance import provenance


def test_provenance_has_date_versions_and_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/eligo", "scenes", "--out", "a b.json"])
    head = provenance()
    assert head["command"] == "eligo scenes --out 'a b.json'"
    assert abs((date.today() - date.fromisoformat(head["date"])).days) <= 1
    assert "cores" in head["hardware"]
    assert head["versions"]["eligo"] == eligo.__version__
    assert head["versions"]["torch"] == torch.__version__
    assert json.loads(json.dumps(head)) == head


def test_commands_of_benchmarks_name_no_folder_of_a_machine(monkeypatch):
    main = SimpleNamespace(__spec__=SimpleNamespace(name="benchmarks.scenes.speed"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["speed.py", "--out=/home/me/runs/a", "/data/x.json", "b/c"])
    expected = "python -m benchmarks.scenes.speed --out=a x.json b/c"
    assert provenance()["command"] == expected


def test_provenance_names_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert provenance("cuda")["hardware"] == "NVIDIA H200"
