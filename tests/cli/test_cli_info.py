"""`eligo info`: versions, extras and shipped models."""

import json

from eligo.cli import info


def test_info_prints_tables(run):
    outcome = run("info")
    assert outcome.code == 0
    for word in ("eligo", "torch", "transformers", "cpu", "tensorboard", "optuna", "ray"):
        assert word in outcome.out


def test_json_with_models(run, monkeypatch, tmp_path):
    for name, file, text in (
        ("patches", "README.md", "\n# Patches of scenes\n\ntext"),
        ("tokens_half", "README.md", "# Half of the tokens\n"),
        ("not_a_model", "notes.txt", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    (tmp_path / "patches" / "vision").mkdir()
    (tmp_path / "patches" / "vision" / "model.safetensors").write_bytes(bytes(1_500_000))
    monkeypatch.setattr("eligo.pretrained.load.SHIPPED", tmp_path)
    monkeypatch.setattr(info, "SHIPPED", tmp_path)
    document = json.loads(run("info", "--json").out)
    assert document["models"] == [
        {"model": "patches", "MB": 1.5, "about": "Patches of scenes"},
        {"model": "tokens_half", "MB": 0.0, "about": "Half of the tokens"},
    ]
    assert {row["extra"] for row in document["extras"]} >= {"tensorboard", "search", "ray"}


def test_shipped_models_are_listed(run):
    models = {row["model"]: row for row in json.loads(run("info", "--json").out)["models"]}
    assert models["vlm"]["about"].startswith("A tiny LLaVA")
    assert models["vlm"]["MB"] > 10


def test_missing_extra_is_shown_with_its_pip_command(run, monkeypatch):
    found = info._version
    monkeypatch.setattr(info, "_version", lambda name: None if name == "optuna" else found(name))
    rows = {row["extra"]: row for row in json.loads(run("info", "--json").out)["extras"]}
    assert rows["search"]["version"] is None
    assert rows["search"]["get it"] == "pip install 'eligo[search]'"
