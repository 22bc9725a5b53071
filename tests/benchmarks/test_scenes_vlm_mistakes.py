"""Invalid input to training and evaluation of the tiny LLaVA gives one line, before any work."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from benchmarks.scenes import evaluate_vlm, train_vlm
from eligo.cli import run_script
from eligo.errors import InputError, OutputError
from eligo.pretrained.load import SHIPPED
from eligo.scenes import SceneConfig, load_vlm
from eligo.scenes.blind import fit_blind
from eligo.scenes.question_kinds import KINDS
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, save_vlm

CONFIG = Path(train_vlm.__file__).with_name("vlm_see.yaml")
TINY = VlmConfig(
    image_size=28, vision_width=16, vision_layers=2, layers=1, width=16, hidden=16, heads=2
)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.image_size", "340"], "image_size: got 340, expected a multiple of 14"),
        (["--model.vision_width", "100"], "vision_width: got 100, expected a multiple of 6"),
        (["--model.width", "18"], "width: got 18, expected a multiple of 12"),
        (["--model.heads", "0"], "--model.heads: got 0"),
        (["--scenes.width", "56"], "expected both to be 336, model.image_size"),
        (["--weights", *"000000"], "weights: got (0, 0, 0, 0, 0, 0)"),
        (["--weights", *"00000", "-1"], "--weights.5: got -1"),
    ],
)
def test_invalid_training_configs_are_refused(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_script(train_vlm.run, [str(CONFIG), *flags]) == 2
    assert message in capsys.readouterr().err


def test_unavailable_devices_are_refused(capsys):
    names = ["foo"] if torch.cuda.is_available() else ["foo", "cuda"]
    for name in names:
        assert run_script(evaluate_vlm.run, ["--device", name]) == 2
        output = capsys.readouterr().err
        assert f"device: got '{name}'" in output
        assert len(output.splitlines()) == 1


def test_model_without_weights_is_refused(tmp_path):
    for name in ("all", "one"):
        there = tmp_path / name
        shutil.copytree(SHIPPED / "vlm", there)
        for shard in sorted(there.glob("*.safetensors"))[0 if name == "all" else 1 :]:
            shard.unlink()
        with pytest.raises(InputError, match="cannot be read") as output:
            load_vlm(there)
        assert "\n" not in str(output.value)
    (there / "model-00002-of-00002.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read"):
        load_vlm(there)


def test_loading_prints_no_progress_bar(tmp_path, capsys):
    assert transformers_logging.is_progress_bar_enabled()
    save_vlm(build_vlm(TINY), build_processor(TINY), tmp_path)
    load_vlm(tmp_path)
    assert capsys.readouterr().err == ""
    assert transformers_logging.is_progress_bar_enabled()


def answered(config, on_progress):
    return [
        evaluate_vlm.AnsweredQuestion("size", "a question", "right", False, "right", "wrong")
    ] * 6


def test_out_is_checked_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.scenes.evaluate_vlm.evaluate_vlm", None)
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "vlm.json")
    assert run_script(evaluate_vlm.run, ["--device", "cpu", "--out", out]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_result_is_printed_if_it_cannot_be_written(tmp_path, monkeypatch, capsys):
    def full(path, text):
        raise OutputError(f"{path}: cannot be written")

    monkeypatch.setattr("benchmarks.scenes.evaluate_vlm.evaluate_vlm", answered)
    monkeypatch.setattr("eligo.cli.console.write_text", full)
    out = str(tmp_path / "new" / "vlm.json")
    command = ["--device", "cpu", "--json", "--out", out]
    assert run_script(evaluate_vlm.run, command) == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["rows"][-1]["accuracy"]["right"] == 6
    assert "cannot be written" in output.err


def test_blind_baseline_falls_back_to_the_question_kind():
    blind = fit_blind(SceneConfig(height=56, width=56), 100)
    for kind in KINDS:
        assert blind("an unknown question", kind.name) in kind.answers
