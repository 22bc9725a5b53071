"""`eligo search CONFIG`: hyper-parameter search of any task with Optuna."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Annotated

import tyro

from eligo.cli.console import print_result
from eligo.cli.registry import config_class, resolve_task, split_search
from eligo.config import Config, Layer, read_layer, validate
from eligo.config.effects import reason_of, unused_keys
from eligo.errors import ConfigError, EligoError, InputError
from eligo.tokens.compat import SECTIONS
from eligo.train.config import SearchConfig

SEARCHED = ("shots.train", "patches.train", "pixels.train", "tokens.finetune", "tokens.train")
"""Registered tasks that can be searched: their configs have a method `build`."""
_SHARED = "ELIGO_SEARCH_GPUS_SHARED"  # set in other workers, whose GPUs are chosen
_MAX_WORKERS = 256
_COUNT_GPUS = "import torch; print(torch.cuda.device_count())"
_LAUNCH = (
    "-m accelerate.commands.launch --multi_gpu --num_machines 1 --mixed_precision no "
    "--dynamo_backend no --main_process_port 0"
)

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
Shares = list[tuple[str, ...]]
logger = logging.getLogger("eligo.cli")


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
    if _is_launched() and (workers or 1) > 1:
        raise InputError(
            f"--workers: got {workers}, expected 1: accelerate launch has started this worker"
        )
    is_first = os.environ.get("RANK", "0") == "0"
    config, search, layer = _read_all(source)
    if is_first and _SHARED not in os.environ:
        _report_unused(config, search, layer)
    shares = _shares(search, config.translated(layer).where(("search", "gpus")))
    if workers is None:
        workers = max(1, len(shares))
    if shares and search.gpus_per_worker > 1:
        from eligo.train.search import supervise_search

        def work() -> None:
            with _workers(source, range(workers), shares):
                pass

        return print_result(supervise_search(config, search, work), json)
    os.environ.update(_visible(shares, 0))  # before anything looks for a device
    from eligo.train.search import run_search

    with _workers(source, range(1, workers), shares):
        result = run_search(config, search)
    if is_first:
        print_result(result, json)
    return None


@contextmanager
def _workers(source: str, numbers: Iterable[int], shares: Shares) -> Iterator[None]:
    """Run more workers with the same command; an error shows their messages.

    Worker 0, if it is among them, prints its messages at once.
    """
    with TemporaryFile("w+") as messages:
        processes = []
        for number in numbers:
            env = {**os.environ, **_visible(shares, number), **({_SHARED: "1"} if shares else {})}
            count = len(shares[0]) if shares else 1
            streams = {"stdout": subprocess.DEVNULL, "stderr": messages if number else None}
            processes.append(subprocess.Popen(_command(source, count), env=env, **streams))
        try:
            yield
            codes = [process.wait() for process in processes]
            if any(codes):
                messages.seek(0)
                cause = _cause(messages.read())
                raise EligoError(
                    f"a worker of the search failed (the same command continues){cause}"
                )
        finally:
            for process in processes:
                process.terminate()


def _cause(messages: str) -> str:
    """Return the error in the messages of workers; for a bug, the end of them."""
    errors = [line for line in messages.splitlines() if line.startswith("error: ")]
    if errors or not messages:
        return f": {errors[0].removeprefix('error: ')}" if errors else "; see above"
    return f":\n{messages[-4000:]}"


def _command(source: str, num_processes: int) -> list[str]:
    """Return the command of one worker, in one process or in several that train together."""
    launch = []
    if num_processes > 1:
        launch = [*_LAUNCH.split(), f"--num_processes={num_processes}"]
    return [sys.executable, *launch, "-m", "eligo", "search", source, "--workers", "1"]


def _shares(search: SearchConfig, where: str) -> Shares:
    """Return the GPUs of each worker; empty if all workers see all GPUs, or in such a worker."""
    if _SHARED in os.environ or _is_launched() or not search.gpus:
        return []
    each = search.gpus_per_worker
    if len(search.gpus) < each:
        raise ConfigError(
            f"search.gpus_per_worker: got {each}, expected at most {len(search.gpus)}, the number "
            "of search.gpus"
        )
    count = _num_gpus()
    if max(search.gpus) >= count:
        listed = ", ".join(map(str, search.gpus))
        known = f"{count} GPUs, 0 to {count - 1}" if count > 1 else ("no GPU", "one GPU, 0")[count]
        raise ConfigError(
            f"{where}got {listed}, but this machine has {known}; "
            f"{'name only those, or ' if count else ''}leave the key out"
        )
    starts = range(0, len(search.gpus) - each + 1, each)
    if left := search.gpus[len(starts) * each :]:
        listed = ", ".join(map(str, left))
        logger.warning("%snot used: GPU %s; every worker has %d", where, listed, each)
    before = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    visible = dict(enumerate(filter(None, before)))  # numbers count the GPUs that are visible
    names = [visible.get(gpu, str(gpu)) for gpu in search.gpus]
    return [tuple(names[start : start + each]) for start in starts]


def _is_launched() -> bool:
    """Return whether this is one of several processes of one worker."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _num_gpus() -> int:
    """Return the number of GPUs, or of processes on a CPU that stand in for them.

    In a process of its own: one that has looked for GPUs cannot change which ones it sees.
    """
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return _MAX_WORKERS
    count = subprocess.run([sys.executable, "-c", _COUNT_GPUS], capture_output=True, check=True)
    return int(count.stdout)


def _visible(shares: Shares, worker: int) -> dict[str, str]:
    if not shares:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(shares[worker % len(shares)])}


def _read(source: str) -> tuple[Config, SearchConfig]:
    """Return the config of a run and its section `search:`."""
    return _read_all(source)[:2]


def _read_all(source: str) -> tuple[Config, SearchConfig, Layer]:
    """Return the config of a run, its section `search:`, and both as they were read."""
    read = read_layer(source)
    cls = _class(read)
    layer = cls.translated(read)
    layer, search = split_search(Layer(layer.tree, layer.origins, layer.height, read.below))
    if search is None:
        sections = any(section in read.tree for section in SECTIONS)
        design = "; or `search_settings: {n_trials: 50}`" if sections else ""
        raise ConfigError(f"{source}: no `search:` with `trials` and `space` in it{design}")
    config = validate(cls, layer)
    task = str(getattr(config, "task", ""))
    if search.enable is False:
        train = f": `eligo {task.replace('.', ' ')} {source}`" if task in SEARCHED else ""
        raise ConfigError(
            f"{layer.where(('search', 'enable'))}is false: this file is for one training{train}; "
            "set it to true to search"
        )
    return config, search, read


def _class(layer: Layer) -> type[Config]:
    if "task" not in layer.tree and any(section in layer.tree for section in SECTIONS):
        return resolve_task("tokens.train")  # a file of the two-stage pruning design
    return config_class(layer, offered=SEARCHED)


def _report_unused(config: Config, search: SearchConfig, layer: Layer) -> None:
    unused = {f"search.{key}": reason for key, reason in search.without_effect().items()}
    unused |= dict.fromkeys(search.space, "search.space chooses it")
    if _is_launched():
        keys = ("search.gpus", "search.gpus_per_worker")
        unused |= dict.fromkeys(keys, "accelerate launch has chosen the GPUs")
    unused["train.keep_checkpoints"] = "a trial keeps its best and its last checkpoint"
    for line in unused_keys(config, layer, also=unused):
        logger.warning(line)
    with suppress(ConfigError):  # an invalid space, which is reported later
        for key in search.space:
            reasons = [reason_of(variant, key) for variant in _variants(config, search, key)]
            if all(reasons):
                logger.warning("search.space.%s: has no effect here: %s", key, reasons[0])


def _variants(config: Config, search: SearchConfig, key: str) -> list[Config]:
    """Return the config, and what the other keys of the space may make of it, one at a time."""
    changes = [
        {other: value}
        for other, choices in search.space.items()
        if other != key
        for value in (choices if isinstance(choices, list) else (choices.low, choices.high))
    ]
    return [config, *(config.replace(change) for change in changes)]
