"""Hyperparameter search: spaces, pruning, workers, errors."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from search_run import search_and_kill, search_in_two_and_kill
from toy_task import toy

from eligo.cli import search as command_module
from eligo.cli.registry import TASKS, load_run_config, resolve_task
from eligo.cli.search import run as search_command
from eligo.config import dump_yaml, load_config
from eligo.errors import ConfigError, InputError, MissingExtraError, OutputError
from eligo.train import fit
from eligo.train.config import RangeConfig, SearchConfig
from eligo.train.search import run_search
from forks import run_forked

optuna: Any = pytest.importorskip("optuna", reason="optuna is not installed (extra: search)")

LR = RangeConfig(low=1e-4, high=1e-1, log=True)


def study(folder: Path) -> Any:
    return optuna.load_study(study_name="search", storage=f"sqlite:///{folder / 'study.db'}")


def test_search_prunes_and_its_best_trains(tmp_path: Path) -> None:
    config = toy(tmp_path, train__evaluate_every=1).config
    space: dict[str, Any] = {"head.lr": LR, "width": RangeConfig(low=4, high=8)}
    result = run_search(config, SearchConfig(trials=8, space=space, reduction=2))
    trials = study(result.folder).trials
    assert result.num_trials == len(trials) == 8
    states = {trial.state.name for trial in trials}
    assert states == {"COMPLETE", "PRUNED"}
    complete = [trial for trial in trials if trial.state.name == "COMPLETE"]
    assert result.best_value == min(trial.value for trial in complete)

    assert result.best_config is not None
    best = load_run_config(result.best_config)
    assert isinstance(best.width, int)  # pyright: ignore
    retrained = fit(best.build(), best.train)  # pyright: ignore
    assert retrained.folder == tmp_path / "run"
    assert retrained.best["loss"] == result.best_value


@pytest.mark.parametrize("trials", [None, 6])
def test_lists_are_searched_as_a_grid(tmp_path: Path, trials: int | None) -> None:
    config = toy(tmp_path, train__evaluate_every=1).config
    space: dict[str, Any] = {"head.lr": [1e-4, 1e-2], "width": [4, 6, 8]}
    search = SearchConfig(trials=trials, space=space, reduction=2)
    assert search.is_grid
    assert run_search(config, search).num_trials == 6
    found = study(tmp_path / "run_search").trials
    assert {trial.state.name for trial in found} == {"COMPLETE"}  # none is pruned
    tried = [(trial.params["head.lr"], trial.params["width"]) for trial in found]
    assert sorted(tried) == [(lr, width) for lr in (1e-4, 1e-2) for width in (4, 6, 8)]
    assert run_search(config, search).num_trials == 6  # done: nothing is added


def test_interrupted_grid_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy(tmp_path).config
    search = SearchConfig(space={"width": [4, 6, 8]})
    original, queued = optuna.Study.enqueue_trial, []

    def enqueue(self: Any, params: Any, **options: Any) -> None:
        if len(queued) == 2:
            raise KeyboardInterrupt
        queued.append(original(self, params, **options))

    monkeypatch.setattr(optuna.Study, "enqueue_trial", enqueue)
    with pytest.raises(KeyboardInterrupt):
        run_search(config, search)
    monkeypatch.undo()
    run_search(config, search)
    assert [t.params["width"] for t in study(tmp_path / "run_search").trials] == [4, 6, 8]


def test_trials_are_named_with_their_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = SearchConfig(space={"head.lr": [1e-4], "width": [4, 6]})
    with caplog.at_level("INFO", "eligo.train"):
        run_search(toy(tmp_path).config, search)
    assert [line for line in caplog.messages if line.startswith("trial_")] == [
        "trial_0000: head.lr 0.0001, width 4",
        "trial_0001: head.lr 0.0001, width 6",
    ]


def test_number_of_trials_without_a_grid() -> None:
    assert SearchConfig(space={"head.lr": LR}).num_trials == 20
    few = SearchConfig(trials=3, space={"width": [4, 6, 8, 16]})
    assert (few.num_trials, few.is_grid) == (3, False)


def test_huge_grid_is_refused() -> None:
    space: dict[str, Any] = {"width": list(range(1, 27)), "train.seed": list(range(40))}
    with pytest.raises(ConfigError, match=r"^space: got 1040 combinations, .*1000 to try each"):
        load_config(SearchConfig, {"space": space})
    assert load_config(SearchConfig, {"space": space, "trials": 9}).num_trials == 9


def test_missing_optuna_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"eligo\[search\]"):
        run_search(toy(tmp_path).config, SearchConfig(space={"head.lr": LR}))


def test_diverging_trial_is_pruned(tmp_path: Path) -> None:
    config = toy(tmp_path, nonfinite_steps=[1, 2], train__max_nonfinite=2).config
    result = run_search(config, SearchConfig(trials=2, space={"head.lr": LR}))
    assert (result.num_trials, result.best_value, result.best_config) == (2, None, None)


def test_space_is_checked_before_any_trial(tmp_path: Path) -> None:
    config = toy(tmp_path).config
    bad: dict[str, Any] = {
        "wdth": [1],
        "width": ["wide", 3],
        "head.lr": RangeConfig(low=1, high=0),
        "train.name": ["a", "b"],
    }
    for key, choices in bad.items():
        with pytest.raises(ConfigError, match=key):
            run_search(config, SearchConfig(space={key: choices}))
    assert not (tmp_path / "run_search").exists()


def test_number_of_trials_may_change_but_not_the_config(tmp_path: Path) -> None:
    search = SearchConfig(trials=1, space={"head.lr": LR})
    run_search(toy(tmp_path).config, search)
    with pytest.raises(ConfigError, match=r"config\.body\.lr"):
        run_search(toy(tmp_path, body__lr=0.5).config, search)
    more = run_search(toy(tmp_path).config, search.replace({"trials": 2}))
    assert more.num_trials == 2


def test_killed_workers_are_replaced(tmp_path: Path) -> None:
    run_forked(search_and_kill, (tmp_path,))
    trials = study(tmp_path / "run_search").trials
    names = [trial.state.name for trial in trials]
    assert names.count("FAIL") == 2
    assert set(names) <= {"FAIL", "COMPLETE", "PRUNED"}
    assert len(names) - names.count("FAIL") == 7
    for trial in trials:
        if "continues" in trial.user_attrs:
            killed = trials[trial.user_attrs["continues"]]
            assert (killed.state.name, killed.params) == ("FAIL", trial.params)
            # It went on where it was: every step of the run is there once.
            folder = tmp_path / "run_search" / f"trial_{killed.number:04d}"
            lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
            steps = [line["step"] for line in lines if line["split"] == "train"]
            assert steps == list(range(1, 13))
    assert (tmp_path / "run_search" / "best.yaml").exists()


def test_search_command_with_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # where `toy_task` is found
    tree = toy(tmp_path).config.model_dump(mode="json")
    tree["search"] = {"trials": 4, "space": {"head.lr": {"low": 1e-4, "high": 1e-1, "log": True}}}
    source = tmp_path / "search.yaml"
    source.write_text(dump_yaml(tree))
    search_command(str(source), workers=2, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["num_trials"] == 4
    assert set(printed["best_values"]) == {"head.lr"}

    tree["search"]["space"]["head.lr"]["hgh"] = 1
    source.write_text(dump_yaml(tree))
    with pytest.raises(ConfigError, match=r"search\.space\.head\.lr\.hgh"):
        search_command(str(source))
    del tree["search"]
    source.write_text(dump_yaml(tree))
    with pytest.raises(ConfigError, match="no `search:`"):
        search_command(str(source))


def test_config_from_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "training.md"
    (shown,) = re.findall(
        r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    Path("my_run.yaml").write_text(shown)
    quick = {
        "extends": "my_run.yaml",
        "train": {"total_steps": 2, "evaluate_every": 1, "checkpoint_every": 2},
        "data": {"train_images": 16, "validation_images": 8},
        "search": {"trials": 1},
    }
    Path("quick.yaml").write_text(dump_yaml(quick))
    search_command("quick.yaml", json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == "runs/my_run_search"
    assert set(printed["best_values"]) == {"optimizer.lr", "train.batch_size"}
    for name in command_module.SEARCHED:
        assert f"`{name}`" in page.read_text("utf-8")


def test_searchable_tasks() -> None:
    buildable = [name for name in TASKS if hasattr(resolve_task(name), "build")]
    assert list(command_module.SEARCHED) == buildable


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("", "run.yaml: task: missing; expected a task: shots.train, patches.train, "),
        ("task: tokens.sweep", "run.yaml:1: task: got 'tokens.sweep'; expected a task: shots.tr"),
        ("task: demos.train", "run.yaml:1: task: the task demos.train is now shots.train"),
        ("task: patches.trian", "did you mean patches.train? (known: shots.train, patches.train"),
    ],
)
def test_errors_list_the_tasks_that_can_be_searched(
    tmp_path: Path, task: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(f"{task}\nsearch: {{space: {{seed: [1, 2]}}}}\n")
    with pytest.raises(ConfigError, match=re.escape(says)) as error:
        search_command("run.yaml")
    assert "scenes.export" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "choices", "message"),
    [
        ("head.lr", {"low": 0, "high": 1.0, "log": True}, "got low 0 with log: true"),
        ("head.lr", {"low": 1, "high": 1}, "expected low below high"),
        ("width", [], "got no choices"),
        ("wdth", [1], "unknown key; did you mean width"),
        ("width", ["wide"], "got 'wide', expected a valid integer"),
    ],
)
def test_invalid_spaces_are_refused(tmp_path: Path, key: str, choices: Any, message: str) -> None:
    search = SearchConfig(space={key: choices})
    with pytest.raises(ConfigError, match=rf"^search\.space\.{key}: .*{message}"):
        run_search(toy(tmp_path).config, search)


def test_infinite_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^space\.head\.lr\.high: got inf, expected a finite"):
        load_config(SearchConfig, {"space": {"head.lr": {"low": 0, "high": float("inf")}}})


def test_names_with_special_url_characters(tmp_path: Path) -> None:
    config = toy(tmp_path, train__name="a?b#c%20{d}").config
    result = run_search(config, SearchConfig(trials=1, space={"head.lr": LR}))
    assert result.num_trials == 1
    assert (tmp_path / "a?b#c%20{d}_search" / "study.db").is_file()


def test_invalid_search_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        run_search(toy(tmp_path / "file").config, SearchConfig(space={"head.lr": LR}))


@pytest.mark.parametrize("workers", [0, -1, 1000])
def test_number_of_workers_is_limited(workers: int) -> None:
    with pytest.raises(InputError, match=f"--workers: got {workers}, expected 1 to"):
        search_command("tokens/search", workers=workers)


def shown(tmp_path: Path, **search: Any) -> str:
    """A file that searches the toy task."""
    tree = toy(tmp_path).config.model_dump(mode="json")
    tree["search"] = {"trials": 2, "space": {"head.lr": [0.1, 0.01]}} | search
    tmp_path.mkdir(exist_ok=True)
    source = tmp_path / "search.yaml"
    source.write_text(dump_yaml(tree))
    return str(source)


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (0, "got 0, 3, but this machine has no GPU; leave the key out"),
        (1, "got 0, 3, but this machine has one GPU, 0; name only those, or leave the key out"),
        (2, "got 0, 3, but this machine has 2 GPUs, 0 to 1; name only those"),
    ],
)
def test_missing_gpus_are_an_error_before_anything_starts(
    count: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(command_module, "_num_gpus", lambda: count)
    with pytest.raises(ConfigError, match=rf"search\.yaml:\d+: search\.gpus: {says}"):
        search_command(shown(tmp_path, gpus=[0, 3]))
    assert not (tmp_path / "run_search").exists()


def test_gpus_are_counted_among_the_visible_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command_module, "_num_gpus", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    search = SearchConfig(space={"head.lr": LR}, gpus=(0, 2, 1), gpus_per_worker=2)
    assert command_module._shares(search, "search.gpus: ") == [("4", "7")]
    assert caplog.messages == ["search.gpus: not used: GPU 1; every worker has 2"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert command_module._shares(search, "") == [("0", "2")]


def test_batch_must_be_divisible_among_the_gpus_of_a_worker(tmp_path: Path) -> None:
    search = SearchConfig(space={"train.batch_size": [8, 9]}, gpus=(0, 1), gpus_per_worker=2)
    says = r"^search\.space\.train\.batch_size: train\.batch_size: got 9, expected a multiple of 2"
    with pytest.raises(ConfigError, match=says):
        run_search(toy(tmp_path).config, search)


def test_worker_in_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gpus_per_worker: 2` starts two processes, here on the CPU, that train every trial."""
    monkeypatch.chdir(Path(__file__).parent)  # where `toy_task` is found
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    search_command(shown(tmp_path / "two", gpus=[0, 1], gpus_per_worker=2), json=True)
    two = json.loads(capsys.readouterr().out)
    # Processes and accumulated parts are seeded alike.
    config = toy(tmp_path / "one", train__gradient_accumulation=2).config
    one = run_search(config, SearchConfig(trials=2, space={"head.lr": [0.1, 0.01]}))
    assert (two["num_trials"], two["best_values"]) == (one.num_trials, one.best_values)
    assert one.best_value is not None
    assert abs(two["best_value"] - one.best_value) < 1e-5
    for number in range(2):
        steps, others = (
            [json.loads(line)["step"] for line in file.read_text().splitlines()]
            for file in (
                folder / "run_search" / f"trial_{number:04d}" / "metrics.jsonl"
                for folder in (tmp_path / "one", tmp_path / "two")
            )
        )
        assert steps == others


def test_killed_worker_of_two_processes_is_continued(tmp_path: Path) -> None:
    run_forked(search_in_two_and_kill, (tmp_path,))
    first, second, *others = study(tmp_path / "run_search").trials
    assert (first.state.name, second.state.name) == ("FAIL", "COMPLETE")
    assert (second.user_attrs["continues"], second.params) == (0, first.params)
    assert not others
    text = (tmp_path / "run_search" / "trial_0000" / "metrics.jsonl").read_text()
    lines = map(json.loads, text.splitlines())
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, 13))


def test_search_reports_keys_without_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eligo.train.search.run_search", lambda *_: {})
    space = {
        "optim.pruners.lr": [0.1],
        "discriminator.dim": [8, 16],
        "merger.num_heads": [2, 4],
        "merger.kind": ["simple", "question_aware"],
    }
    tree = {
        "task": "tokens.train",
        "train": {"keep_checkpoints": 9},
        "optim": {"pruners": {"lr": 0.5}},
        "search": {"space": space, "gpus_per_worker": 2},
    }
    Path("run.yaml").write_text(dump_yaml(tree))
    search_command("run.yaml")
    assert caplog.messages == [
        "run.yaml:3: train.keep_checkpoints: has no effect here: a trial keeps its best and its "
        "last checkpoint",
        "run.yaml:6: optim.pruners.lr: has no effect here: search.space chooses it",
        "run.yaml:20: search.gpus_per_worker: has no effect here: search.gpus names no GPUs to "
        "divide",
        "search.space.discriminator.dim: has no effect here: no discriminator: losses.adversarial "
        "is 0 (objective distill)",
    ]


def test_launched_search_is_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="accelerate launch has started this worker"):
        search_command(shown(tmp_path), workers=2)


def test_config_may_change_until_something_is_trained(tmp_path: Path) -> None:
    search = SearchConfig(trials=1, space={"head.lr": LR})
    config = toy(tmp_path).config
    refused = config.replace({"train.precision": "fp16"})
    with pytest.raises(ConfigError, match="fp16 needs a GPU"):
        run_search(refused, search)
    assert run_search(config, search).num_trials == 1
    with pytest.raises(ConfigError, match=r"config\.train\.precision"):
        run_search(refused, search)


def test_only_helpers_get_their_gpus_by_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[dict[str, str]] = []

    class Helper:
        def __init__(self, command: list[str], *, env: dict[str, str], **options: Any) -> None:
            environments.append(env)

        def wait(self) -> int:
            return 0

        def terminate(self) -> None: ...

    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # and put back afterwards
    monkeypatch.setattr(command_module, "_num_gpus", lambda: 6)
    monkeypatch.setattr(command_module.subprocess, "Popen", Helper)
    monkeypatch.setattr("eligo.train.search.run_search", lambda *_: {})
    tree = toy(tmp_path).config.model_dump(mode="json")
    tree["search"] = {"space": {"head.lr": [0.1]}, "gpus": [3, 5]}
    source = tmp_path / "search.yaml"
    source.write_text(dump_yaml(tree))
    search_command(str(source))
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == ["5"]
    assert command_module._SHARED in environments[0]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    assert command_module._SHARED not in os.environ
