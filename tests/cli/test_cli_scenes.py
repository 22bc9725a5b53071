"""`eligo scenes export` and `eligo scenes stats` from the command line."""

import json

import pytest
from benchmarks.scenes.stats_command import _verdict

from benchmarks.scenes.stats import Row, Stats
from eligo.cli import main

SMALL = ("--train", "3", "--validation", "1", "--test", "1")
TINY = ("--scenes.height", "48", "--scenes.width", "48")


def test_export_and_again(tmp_path, capsys):
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


def test_export_on_an_engine(tmp_path, monkeypatch, capsys):
    heard = {}

    def export_scenes(config, out, on_progress, **options):
        heard.update(options)

    monkeypatch.setattr("eligo.scenes.export.export_scenes", export_scenes)
    command = ["scenes", "export", "vqa", "--out", str(tmp_path)]
    assert main([*command, "--engine", "ray", "--num_workers", "3"]) == 0
    assert heard == {"engine": "ray", "num_workers": 3}
    assert main(command) == 0
    assert heard["engine"] == "local"
    assert main([*command, "--engine", "spark"]) == 2
    assert "spark" in capsys.readouterr().err


def test_export_without_a_config_is_plain_json_lines(tmp_path, capsys):
    assert main(["scenes", "export", "--out", str(tmp_path), *SMALL, *TINY]) == 0
    assert "train.jsonl" in capsys.readouterr().out
    assert len((tmp_path / "train.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["scenes", "export", "nuy", "--out", "x"], "did you mean nyu?"),
        (["scenes", "export", "vqa"], "--out"),
        (["scenes", "export", "vqa", "--out", "x", "--scenes.painted", "1"], "painted"),
        (["scenes", "stats", "--questions", "0"], "--questions"),
        (["scenes", "stats", "nyu"], "task: got 'scenes.export'; expected a task: scenes.stats"),
    ],
)
def test_mistakes(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert "Traceback" not in told.err
    assert not list(tmp_path.iterdir())


def test_stats(capsys):
    flags = ("--train", "60", "--validation", "40")
    assert main(["scenes", "stats", *flags]) == 0
    table = capsys.readouterr().out
    for word in ("lookup", "same colour", "blind", "held-out pairs", "OK"):
        assert word in table
    assert main(["scenes", "stats", *flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["family"] for row in found["questions"]} >= {"count", "relation"}
    assert found["held_out"]["train"] == 0


def test_stats_of_a_world_without_questions(capsys):
    assert main(["scenes", "stats", "--scenes.painted", "1"]) == 2
    assert "painted=0" in capsys.readouterr().err


def test_export_to_a_folder_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "deeper")
    assert main(["scenes", "export", "--out", out, *SMALL, *TINY]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_wrong_config_name_is_answered_with_those_of_the_command(capsys):
    assert main(["scenes", "export", "nonsense", "--out", "x"]) == 2
    told = capsys.readouterr().err
    assert "(shipped with eligo: captions, jsonl, nyu, sun, vqa)" in told


def test_the_verdict_says_what_was_measured():
    def verdict(blind: float, fair: bool) -> str:
        row = Row("count", "all", 9, 1.0, 0.2, blind, 1.0, (0.1, 0.4), fair, {})
        return _verdict(Stats([row], {}, {})).plain

    above = "more than 5 points above chance without looking"
    assert verdict(0.22, True) == f"OK: none is {above}"
    assert verdict(0.30, True) == f"OK, but too few questions to be sure; {above}: count/all"
    assert verdict(0.30, False) == f"!! {above}, and surely above it: count/all"
