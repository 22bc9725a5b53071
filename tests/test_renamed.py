"""Old names give one line with the new name."""

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

import eligo
from eligo.cli import main
from eligo.cli.commands import COMMANDS
from eligo.cli.registry import TASKS, load_run_config
from eligo.config import dump_yaml, find_config, load_config, shipped_configs
from eligo.errors import ConfigError
from eligo.pretrained.load import shipped_models
from eligo.renamed import RENAMED, new_name
from eligo.shots.config import ShotsTrainConfig
from eligo.train.checkpoint import refuse_changes


@pytest.mark.parametrize(
    ("command", "new"),
    [
        ("demos", "`eligo shots`"),
        ("demos teach", "`eligo shots teach`"),
        *RENAMED["command"].items(),
        ("demos exam", RENAMED["command"]["shots exam"]),
        ("demos bench", RENAMED["command"]["shots bench"]),
        ("demos train-learner", RENAMED["command"]["shots train-learner"]),
    ],
)
@pytest.mark.parametrize("more", [[], ["--help"], ["study", "--json"]])
def test_old_commands_name_the_new_ones(
    command: str, new: str, more: list[str], capsys: pytest.CaptureFixture[str]
):
    if command == "demos" and more[:1] == ["study"]:
        command, new = "demos study", "`eligo shots study`"
        more = more[1:]
    assert main([*command.split(), *more]) == 2
    assert capsys.readouterr().err == f"error: `eligo {command}` is now {new}\n"


def test_removed_commands_name_a_module_of_the_repository():
    for name, new in RENAMED["command"].items():
        assert name not in COMMANDS
        module = new.split("`")[1].removeprefix("python -m ")
        assert module.split(".")[:2] == ["benchmarks", name.split()[0]]
        assert find_spec(module) is not None, module


@pytest.mark.parametrize(
    ("task", "new"),
    [
        ("demos.train", "shots.train"),
        ("demos.teach", "shots.teach"),
        ("tokens.exam", "`python -m benchmarks.tokens.study` (in the repository, not installed)"),
    ],
)
def test_old_tasks_in_yaml_name_the_new_ones(task: str, new: str, tmp_path: Path):
    (tmp_path / "run.yaml").write_text(f"task: {task}\n")
    with pytest.raises(ConfigError) as error:
        load_run_config(tmp_path / "run.yaml")
    assert str(error.value) == f"{tmp_path}/run.yaml:1: task: the task {task} is now {new}"


def test_old_run_folders_are_refused(tmp_path: Path):
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_yaml({"task": "demos.train", "train": {"seed": 1}}))
    with pytest.raises(ConfigError, match=r"task: got 'demos\.train', .*; it is now shots\.train$"):
        load_config(ShotsTrainConfig, saved)
    with pytest.raises(ConfigError) as error:
        refuse_changes(saved, {"task": "shots.train", "train": {"seed": 1}}, set())
    message = f"{saved}: from an older eligo (task demos.train, now shots.train); train anew"
    assert str(error.value) == message
    same = {"task": "scenes.train-vlm"}  # a task of the benchmarks keeps its name
    saved.write_text(dump_yaml(same))
    refuse_changes(saved, same, set())


@pytest.mark.parametrize(
    ("family", "name", "new"),
    [
        (None, "demos/v1", "shots/v1"),
        ("tokens", "guide", "tokens/two_stage"),
        (None, "tokens/guide", "tokens/two_stage"),
    ],
)
def test_old_shipped_configs_name_the_new_ones(family: str | None, name: str, new: str):
    with pytest.raises(ConfigError, match=f"^{name}: this config is now {new}$"):
        find_config(family, name)
    assert new in shipped_configs()


def test_old_modules_name_the_new_ones():
    with pytest.raises(ImportError, match=r"^eligo\.demos is now eligo\.shots$"):
        importlib.import_module("eligo.demos")
    with pytest.raises(ImportError, match=r"^eligo\.demos is now eligo\.shots$"):
        importlib.import_module("eligo.demos.teach")
    with pytest.raises(AttributeError, match=r"'demos'; it is now eligo\.shots$"):
        _ = eligo.demos  # pyright: ignore[reportAttributeAccessIssue]


def test_new_names_exist_and_old_ones_do_not():
    assert set(RENAMED["model"].values()) <= set(shipped_models())
    assert not set(RENAMED["task"]) & set(TASKS)
    assert new_name("model", "shots_v1") is None
    assert new_name("task", "tokens.train") is None
    assert new_name("command", "demo") is None
