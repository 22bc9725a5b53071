"""`eligo search CONFIG`: hyper-parameter search of any task with Optuna."""

import os
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
from eligo.errors import ConfigError, EligoError, InputError
from eligo.train.config import SearchConfig

SEARCHED = ("shots.train", "patches.train", "pixels.train", "tokens.train")
"""Registered tasks that can be searched: their configs have a method `build`."""
_SHARED = "ELIGO_SEARCH_GPUS_SHARED"  # set in other workers, whose GPUs are chosen
_MAX_WORKERS = 256

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]


def run(source: Source, workers: int | None = None, json: bool = False) -> None:
    """Search for the hyper-parameters that a run's YAML names under `search:`.

    Running it again continues the search; running it a second time in parallel adds a worker.

    Args:
        source: A YAML file, or the name of a shipped config.
        workers: Number of processes on this machine; none: one, or as many as search.gpus allow.
        json: Print one JSON document.
    """
    if workers is not None and not 1 <= workers <= _MAX_WORKERS:
        raise InputError(f"--workers: got {workers}, expected 1 to {_MAX_WORKERS}")
    config, search = _read(source)
    shares = _shares(search)
    if workers is None:
        workers = max(1, len(shares))
    os.environ.update(_visible(shares, 0))  # before anything looks for a device
    from eligo.train.search import run_search

    with _workers(source, workers - 1, shares):
        result = run_search(config, search)
    print_result(result, json)


@contextmanager
def _workers(source: str, count: int, shares: list[tuple[int, ...]]) -> Iterator[None]:
    """Run `count` more workers with the same command; an error shows their messages."""
    command = [sys.executable, "-m", "eligo", "search", source, "--workers", "1"]
    with TemporaryFile("w+") as messages:
        processes = []
        for number in range(1, count + 1):
            env = {**os.environ, **_visible(shares, number), **({_SHARED: "1"} if shares else {})}
            streams = {"stdout": subprocess.DEVNULL, "stderr": messages}
            processes.append(subprocess.Popen(command, env=env, **streams))
        try:
            yield
            codes = [process.wait() for process in processes]
            if any(codes):
                messages.seek(0)
                raise EligoError(f"a worker of the search failed:\n{messages.read()[-4000:]}")
        finally:
            for process in processes:
                process.terminate()


def _shares(search: SearchConfig) -> list[tuple[int, ...]]:
    """Return the GPUs of each worker; empty if all workers see all GPUs, or in such a worker."""
    if _SHARED in os.environ:
        return []
    each = search.gpus_per_worker
    if search.gpus and len(search.gpus) < each:
        raise ConfigError(
            f"search.gpus_per_worker: got {each}, expected at most {len(search.gpus)}, the number "
            "of search.gpus"
        )
    starts = range(0, len(search.gpus) - each + 1, each)
    return [search.gpus[start : start + each] for start in starts] if search.gpus else []


def _visible(shares: list[tuple[int, ...]], worker: int) -> dict[str, str]:
    if not shares:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, shares[worker % len(shares)]))}


def _read(source: str) -> tuple[Config, SearchConfig]:
    read = read_layer(source)
    layer = config_class(read, offered=SEARCHED).translated(read)
    if "search" not in layer.tree:
        raise ConfigError(f"{source}: no `search:` with `trials` and `space` in it")
    tree = dict(layer.tree)
    inner = Layer({"search": tree.pop("search")}, layer.origins, layer.height, read.below)
    outer = Layer(tree, layer.origins, layer.height, read.below)
    return validate(config_class(outer), outer), validate(_Section, inner).search


class _Section(Config):
    """The part of a run's YAML that the search reads."""

    search: SearchConfig
