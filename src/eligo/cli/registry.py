"""Finds the config class that the `task:` of a YAML file names.

It is a registered name, or `module:ClassName` for a user's own task (importable, or in the working
folder). The class has a field `task: Literal["name"] = "name"`, or `task: str` for a user's task,
so that saved configs name it too.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from eligo.config import Config, Layer, Source, override, read_layer, shipped_configs, validate
from eligo.config.problems import did_you_mean
from eligo.errors import ConfigError
from eligo.renamed import new_name
from eligo.train.config import SearchConfig

TASKS: dict[str, str] = {
    "shots.teach": "eligo.shots.config:TeachConfig",
    "shots.train": "eligo.shots.config:ShotsTrainConfig",
    "patches.train": "eligo.patches.config:PatchesTrainConfig",
    "pixels.train": "eligo.pixels.config:PixelsTrainConfig",
    "scenes.export": "eligo.scenes.config:ExportConfig",
    "tokens.finetune": "eligo.tokens.config:FinetuneConfig",
    "tokens.sweep": "eligo.tokens.config:SweepConfig",
    "tokens.train": "eligo.tokens.config:TokensTrainConfig",
}


def resolve_task(name: str, offered: Collection[str] | None = None) -> type[Config]:
    """Return the config class of a registered task, or of an import path `module:ClassName`.

    Errors list the tasks in `offered` (default: all).
    """
    target = TASKS.get(name, name)
    if new := new_name("task", name):
        raise ConfigError(f"the task {name} is now {new}")
    if ":" not in target:
        names = TASKS if offered is None else offered
        known = f"known: {', '.join(names)}; " if names else ""
        raise ConfigError(
            f"unknown task {name!r}{did_you_mean(name, names)} "
            f"({known}a task of your own is module:ClassName)"
        )
    module_name, _, class_name = target.partition(":")
    if name not in TASKS and str(Path.cwd()) not in sys.path:
        # `python -m eligo` looks in the working folder, the `eligo` script would not.
        sys.path.append(str(Path.cwd()))
    try:
        cls = getattr(import_module(module_name), class_name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a bug in the module: its author needs the traceback
        raise ConfigError(f"{name!r}: no module {error.name!r} can be imported") from None
    if not (isinstance(cls, type) and issubclass(cls, Config)):
        raise ConfigError(f"{name!r}: {class_name!r} is not an eligo Config in {module_name}")
    return cls


def config_class(
    layer: Layer, expected: type[Config] = Config, offered: Collection[str] | None = None
) -> type[Config]:
    """Return the class that a layer's `task:` names; without one, `expected` if it has a task.

    Of the registered tasks only those in `offered` are accepted (default: all).
    """
    own = expected.model_fields.get("task")
    if offered is None and own is not None and own.default in TASKS:
        offered = (own.default,)  # the others are for other commands
    names = TASKS if offered is None else offered
    task = layer.tree.get("task")
    if own is not None and task in (None, own.default):
        return expected
    where = layer.where(("task",))
    if not isinstance(task, str) or (task in TASKS and task not in names):
        got = "missing" if task is None else f"got {task!r}"
        raise ConfigError(f"{where}{got}; expected a task: {', '.join([*names, 'module:Class'])}")
    try:
        cls = resolve_task(task, names)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    if not issubclass(cls, expected):
        raise ConfigError(f"{where}got {task!r}, but this command runs {expected.__name__} tasks")
    return cls


class _SearchSection(Config):
    search: SearchConfig


def split_search(layer: Layer) -> tuple[Layer, SearchConfig | None]:
    """Return the layer of a run without its section `search:`, and that section."""
    if "search" not in layer.tree:
        return layer, None
    section = replace(layer, tree={"search": layer.tree["search"]})
    run = {key: value for key, value in layer.tree.items() if key != "search"}
    return replace(layer, tree=run), validate(_SearchSection, section).search


def configs_of(expected: type[Config], family: str | None) -> list[str]:
    """Return the family's shipped configs for a command; all if it takes several tasks."""
    task = expected.model_fields.get("task")
    names = shipped_configs(family)
    if task is None or task.default not in TASKS:
        return names
    return [name for name in names if read_layer(name, family).tree.get("task") == task.default]


def load_run_config(
    source: Source, overrides: Mapping[str, Any] | None = None, family: str | None = None
) -> Config:
    """Return the validated config of a run, of the class that its `task:` names."""
    layer = read_layer(source, family)
    cls = config_class(override(layer, overrides or {}))
    if "search" not in cls.model_fields:
        layer, _ = split_search(layer)
    return validate(cls, layer, overrides)
