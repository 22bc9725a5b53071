import json

from eligo.cli import info


def test_tables(run):
    outcome = run("info")
    assert outcome.code == 0
    for word in ("eligo", "torch", "transformers", "cpu", "tensorboard", "optuna", "ray"):
        assert word in outcome.out


def test_json_with_models(run, monkeypatch, tmp_path):
    for name, file, text in (
        ("with_card", "card.json", '{"description": "tiny LLaVA"}'),
        ("with_readme", "README.md", "\n# Patches of scenes\n\ntext"),
        ("bare", "config.json", "{}"),
        ("not_a_model", "notes.txt", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    (tmp_path / "with_card" / "config.json").write_text("{}")
    (tmp_path / "with_card" / "model.safetensors").write_bytes(bytes(1_500_000))
    monkeypatch.setattr(info, "MODELS", tmp_path)
    outcome = run("info", "--json")
    document = json.loads(outcome.out)
    assert document["models"] == [
        {"model": "bare", "MB": 0.0, "about": ""},
        {"model": "with_card", "MB": 1.5, "about": "tiny LLaVA"},
        {"model": "with_readme", "MB": 0.0, "about": "Patches of scenes"},
    ]
    assert {row["extra"] for row in document["extras"]} >= {"tensorboard", "search", "ray"}


def test_a_missing_extra_says_how_to_get_it(run, monkeypatch):
    found = info._version
    monkeypatch.setattr(info, "_version", lambda name: None if name == "optuna" else found(name))
    rows = {row["extra"]: row for row in json.loads(run("info", "--json").out)["extras"]}
    assert rows["search"]["version"] is None
    assert rows["search"]["get it"] == "pip install 'eligo[search]'"
