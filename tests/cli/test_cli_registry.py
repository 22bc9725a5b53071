"""Tasks by name and by import path."""

import sys
from pathlib import Path

import pytest
from sample_run import Plain, Run

from eligo.cli.registry import TASKS, config_class, load_run_config, resolve_task
from eligo.config import read_layer, save_config
from eligo.errors import ConfigError


def test_every_registered_task_resolves():
    for name in TASKS:
        assert resolve_task(name).model_fields["task"].default == name


def test_load_by_name_and_by_import_path(sample_commands):
    assert load_run_config("small", family="sample") == Plain(size=1)
    assert load_run_config({"task": "sample_run:Run", "name": "x"}, {"lr": 1}).lr == 1.0


def test_saved_run_config_loads_again(sample_commands):
    config = Run(name="x", lr=2e-5)
    save_config(config, "saved.yaml")
    assert load_run_config("saved.yaml") == config


def test_user_task_in_the_working_folder_is_found(sample_commands, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(Path.cwd()))])
    Path("own_module.py").write_text(
        "from eligo.config import Config\nclass Own(Config):\n    task: str\n    size: int = 1\n"
    )
    config = load_run_config({"task": "own_module:Own"})
    assert config.model_dump() == {"task": "own_module:Own", "size": 1}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("plian", "run.yaml:1: task: unknown task 'plian'; did you mean plain?"),
        ("nowhere:Run", "run.yaml:1: task: 'nowhere:Run': no module 'nowhere' can be imported"),
        ("sample_run.x:Run", "no module 'sample_run.x' can be imported"),
        ("sample_run:take", "'take' is not an eligo Config in sample_run"),
        ("sample_run:Nothing", "'Nothing' is not an eligo Config in sample_run"),
        ("[1]", "run.yaml:1: task: got [1]; expected a task: plain, module:Class"),
    ],
)
def test_invalid_tasks_are_refused(run, task, expected):
    Path("run.yaml").write_text(f"task: {task}\n")
    outcome = run("sample", "take", "run.yaml")
    assert outcome.code == 2
    assert expected in outcome.err
    assert "Traceback" not in outcome.err


def test_missing_task_is_refused(run):
    Path("run.yaml").write_text("size: 3\n")
    assert (
        "run.yaml: task: missing; expected a task: plain" in run("sample", "take", "run.yaml").err
    )


def test_command_accepts_only_its_own_tasks(run):
    Path("run.yaml").write_text("task: sample_run:Run\nname: x\n")
    outcome = run("sample", "take_plain", "run.yaml")
    assert outcome.code == 2
    assert "task: got 'sample_run:Run', but this command runs Plain tasks" in outcome.err


def test_error_in_a_task_module_keeps_its_traceback(sample_commands):
    Path("broken_module.py").write_text("import not_there_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        resolve_task("broken_module:Own")


def test_expected_class_is_used_if_the_task_is_missing():
    assert config_class(read_layer(None), Plain) is Plain
    with pytest.raises(ConfigError, match="task: missing"):
        config_class(read_layer(None))
