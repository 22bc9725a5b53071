"""`eligo search CONFIG`: hyper-parameters of any task, by Optuna."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Annotated

import tyro

from eligo.cli.console import print_result
from eligo.cli.registry import config_class
from eligo.config import Config, Layer, read_layer, validate
from eligo.errors import ConfigError, EligoError
from eligo.train.search import SearchConfig, run_search

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]


def run(source: Source, workers: int = 1, json: bool = False) -> None:
    """Search for the hyper-parameters that a run's YAML names under `search:`.

    Starting it again continues the search; starting it beside itself adds a worker.

    Args:
        source: A YAML file, or the name of a shipped config.
        workers: Processes to work with, on this machine.
        json: Print one JSON document instead of tables.
    """
    config, search = _read(source)
    with _helpers(source, workers - 1):
        result = run_search(config, search)
    print_result(result, json)


@contextmanager
def _helpers(source: str, count: int) -> Iterator[None]:
    """The same command `count` times more, their messages kept for when one fails."""
    command = [sys.executable, "-m", "eligo", "search", source]
    with TemporaryFile("w+") as messages:
        helpers = [
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)
            for _ in range(count)
        ]
        try:
            yield
            codes = [helper.wait() for helper in helpers]
            if any(codes):
                messages.seek(0)
                raise EligoError(f"a worker of the search failed:\n{messages.read()[-4000:]}")
        finally:
            for helper in helpers:
                helper.terminate()


def _read(source: str) -> tuple[Config, SearchConfig]:
    layer = read_layer(source)
    layer = config_class(layer).translated(layer)
    if "search" not in layer.tree:
        raise ConfigError(f"{source}: no `search:` with `trials` and `space` in it")
    # The rest is the run's config; what lies under `search:` is ours.
    tree = dict(layer.tree)
    inner = Layer(
        tree.pop("search"),
        {path[1:]: origin for path, origin in layer.origins.items() if path[:1] == ("search",)},
        layer.height,
    )
    outer = Layer(tree, layer.origins, layer.height)
    return validate(config_class(outer), outer), validate(SearchConfig, inner)
