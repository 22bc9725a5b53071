"""`eligo scenes export` from the command line."""

import json

import pytest

from eligo.cli import main

SMALL = ("--train", "3", "--validation", "1", "--test", "1")
TINY = ("--scenes.height", "48", "--scenes.width", "48")


def test_second_export_reuses_the_files(tmp_path, capsys):
    command = ["scenes", "export", "nyu", "--out", str(tmp_path), *SMALL, "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["scenes"], first["pictures_written"]) == (5, 15)
    assert (tmp_path / "Label" / "test_000000.png").exists()
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["pictures_written"], again["pictures_found"]) == (0, 15)
    assert main([*command, "--depth", "png8"]) == 2
    assert "holds another export (depth 'metric' there, 'png8' now)" in capsys.readouterr().err


def test_engine_flags_reach_the_export(tmp_path, monkeypatch, capsys):
    options_seen = {}

    def export_scenes(config, out, on_progress, **options):
        options_seen.update(options)

    monkeypatch.setattr("eligo.scenes.export.export_scenes", export_scenes)
    command = ["scenes", "export", "vqa", "--out", str(tmp_path)]
    assert main([*command, "--engine", "ray", "--num_workers", "3"]) == 0
    assert options_seen == {"engine": "ray", "num_workers": 3}
    assert main(command) == 0
    assert options_seen["engine"] == "local"
    assert main([*command, "--engine", "spark"]) == 2
    assert "spark" in capsys.readouterr().err


def test_export_without_a_config_writes_json_lines(tmp_path, capsys):
    assert main(["scenes", "export", "--out", str(tmp_path), *SMALL, *TINY]) == 0
    assert "train.jsonl" in capsys.readouterr().out
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scenes", "export", "nuy", "--out", "x"], "did you mean nyu?"),
        (["scenes", "export", "vqa"], "--out"),
        (["scenes", "export", "vqa", "--out", "x", "--scenes.painted", "1"], "painted"),
    ],
)
def test_invalid_arguments_are_refused(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_export_to_an_invalid_folder_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "deeper")
    assert main(["scenes", "export", "--out", out, *SMALL, *TINY]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_unknown_config_lists_the_configs_of_the_command(capsys):
    assert main(["scenes", "export", "nonsense", "--out", "x"]) == 2
    assert "(shipped with eligo: captions, jsonl, nyu, sun, vqa)" in capsys.readouterr().err
