"""`eligo explore --live --model FOLDER`: training-free methods on a user's own model."""

import json
from pathlib import Path

import pytest
from PIL import Image

from eligo.cli import main
from eligo.cli.explorer import live_tools
from eligo.errors import InputError
from eligo.explorer.inline import inline
from eligo.explorer.tools import LiveImage, LiveRequest, LiveTool, describe
from eligo.tokens.methods import METHODS, VIDEO_METHODS
from shipped_models import VLM, vlm

PHOTO = LiveImage("upload", Image.effect_noise((90, 70), 80).convert("RGB"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "my-model"
    vlm(folder, VLM)
    return folder


@pytest.fixture(scope="module")
def tool(folder: Path) -> LiveTool:
    (found,) = live_tools("cpu", str(folder))
    return found


def ask(tool: LiveTool, method: str, beside: str = "nothing", *, budget: int = 25, text="red ?"):
    choices = {"method": method, "beside": beside}
    shown = inline(tool.run(LiveRequest(text, PHOTO, None, budget, choices)))
    json.dumps(shown, allow_nan=False)
    return shown


def test_every_training_free_method_runs_on_an_upload(tool: LiveTool):
    offered = {choice.name: choice.options for choice in tool.choices}
    methods = set(METHODS) - {"none", "oracle", *VIDEO_METHODS}
    assert set(offered["method"]) == methods  # no plan
    assert set(offered["beside"]) == methods | {"nothing"}
    for name in methods:
        shown = ask(tool, name)
        assert [len(stage["chosen"][0]["kept"]) for stage in shown["stages"]] == [9]  # of 36
        assert [answer["who"] for answer in shown["answers"]] == ["all tokens", name]
        assert all(answer["right"] is None for answer in shown["answers"])
        assert shown["note"] == ""


def test_two_methods_are_shown_side_by_side(tool: LiveTool):
    shown = ask(tool, "tome", "fastv", budget=50)
    assert [stage["name"] for stage in shown["stages"]] == ["tome", "fastv"]
    assert shown["cost"]["tome: vision tokens"] == "36 > 18"


def test_smallest_and_largest_budget(tool: LiveTool):
    assert tool.budget is not None
    assert ask(tool, "divprune", budget=int(tool.budget.max))["cost"]["vision tokens"] == "36 > 36"
    assert len(ask(tool, "divprune", budget=int(tool.budget.min))["stages"]) == 1


def test_photos_of_the_demo_are_examples(tool: LiveTool):
    assert [example.title for example in tool.examples] == ["Astronaut", "Coffee"]
    for example in tool.examples:
        request = LiveRequest(example.text, example.image, None, 25,
                              {"method": "divprune", "beside": "nothing"})  # fmt: skip
        assert tool.run(request).stages


def test_page_says_what_is_not_available(tool: LiveTool):
    (described,) = describe([tool])["tools"]
    assert described["about"].startswith("Your model my-model, with training-free methods only.")
    assert "eligo tokens train" in described["about"]


def test_empty_question_is_refused(tool: LiveTool):
    with pytest.raises(InputError, match="text: is empty"):
        ask(tool, "divprune", text=" ")


@pytest.mark.parametrize(
    ("kind", "command"),
    [("clip", "eligo patches predict --model"), ("dinov2", "eligo tokens build --tower")],
)
def test_encoder_is_refused_with_the_command_that_takes_it(
    kind: str, command: str, tmp_path: Path, capsys
):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert main(["explore", "--live", "--device", "cpu", "--model", str(tmp_path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"is an encoder ({kind}), which answers no questions" in error
    assert command in error


def test_missing_model_is_refused(tmp_path: Path, capsys):
    assert main(["explore", "--live", "--model", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
