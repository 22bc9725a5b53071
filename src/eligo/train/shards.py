"""An ordered map over shards, in this process or on Ray, with the same results.

A shard that fails, by an exception or because its worker died, is tried again. After the last try
its result is a `ShardFailure`, or the map raises the error (`keep_going=False`). Ray's ActorPool is
not used: it neither reports which task failed nor replaces a dead actor.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from eligo.errors import InputError, MissingExtraError

Shard = TypeVar("Shard")
Result = TypeVar("Result")
Engine = Literal["local", "ray"]


@dataclass(frozen=True)
class ShardFailure:
    """Takes the place of a shard's result; `error` is the error of the last try."""

    index: int
    error: str


def map_shards(
    factory: Callable[[], Callable[[Shard], Result]],
    shards: Sequence[Shard],
    *,
    engine: Engine = "local",
    num_workers: int = 1,
    gpus_per_worker: float = 0.0,
    max_tries: int = 3,
    keep_going: bool = True,
    on_done: Callable[[int], None] | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result | ShardFailure]:
    """Return `factory()(shard)` for every shard, in order.

    `factory` is called once in every worker, to load a model for example. `on_result` is called in
    this process with every result as soon as it is there, then `on_done(count)` with the number of
    finished shards. Ray joins the cluster at RAY_ADDRESS, or starts one
    on this machine and stops it at the end. The local engine ignores `num_workers` and
    `gpus_per_worker`.
    """
    if num_workers < 1 or max_tries < 1:
        raise InputError(f"num_workers {num_workers} and max_tries {max_tries} must be at least 1")
    queue = _Queue(shards, max_tries, keep_going, on_done, on_result)
    if engine == "local":
        _run_local(factory, queue)
    else:
        _run_on_ray(factory, queue, num_workers, gpus_per_worker)
    return queue.results


class _Queue:
    """Waiting shards, tries and results."""

    def __init__(
        self,
        shards: Sequence[Any],
        max_tries: int,
        keep_going: bool,
        on_done: Callable[[int], None] | None,
        on_result: Callable[[Any], None] | None,
    ) -> None:
        self.shards, self.max_tries = shards, max_tries
        self.keep_going, self.on_done, self.on_result = keep_going, on_done, on_result
        self.waiting = deque(range(len(shards)))
        self.tries = [0] * len(shards)
        self.results: list[Any] = [None] * len(shards)
        self.num_done = 0

    def take(self) -> tuple[int, Any]:
        index = self.waiting.popleft()
        self.tries[index] += 1
        return index, self.shards[index]

    def succeed(self, index: int, result: Any) -> None:
        if self.on_result is not None and not isinstance(result, ShardFailure):
            self.on_result(result)
        self.results[index] = result
        self.num_done += 1
        if self.on_done is not None:
            self.on_done(self.num_done)

    def fail(self, index: int, error: Exception) -> None:
        if self.tries[index] < self.max_tries:
            self.waiting.append(index)
        elif not self.keep_going:
            raise error
        else:
            self.succeed(index, ShardFailure(index, f"{type(error).__name__}: {error}"))


def _run_local(factory: Callable[[], Callable[[Any], Any]], queue: _Queue) -> None:
    function = None
    while queue.waiting:
        index, shard = queue.take()
        try:
            function = function or factory()
            result = function(shard)
        except Exception as error:
            queue.fail(index, error)
        else:
            queue.succeed(index, result)


class _Worker:
    """Ray actor that builds the function once."""

    def __init__(self, factory: Callable[[], Callable[[Any], Any]]) -> None:
        self.function = factory()

    def run(self, shard: Any) -> Any:
        return self.function(shard)


def _run_on_ray(
    factory: Callable[[], Callable[[Any], Any]],
    queue: _Queue,
    num_workers: int,
    gpus_per_worker: float,
) -> None:
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        # An existing cluster has its own resources; requesting some would be an error.
        num_cpus = None if "RAY_ADDRESS" in os.environ else num_workers
        ray.init(
            num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level="error"
        )
    try:
        remote = ray.remote(num_cpus=1, num_gpus=gpus_per_worker)(_Worker)
        idle = [remote.remote(factory) for _ in range(min(num_workers, len(queue.shards)))]
        running: dict[Any, tuple[Any, int]] = {}
        while queue.waiting or running:
            while queue.waiting and idle:
                worker = idle.pop()
                index, shard = queue.take()
                running[worker.run.remote(shard)] = (worker, index)
            reference = ray.wait(list(running), num_returns=1)[0][0]
            worker, index = running.pop(reference)
            try:
                queue.succeed(index, ray.get(reference))
            except ray.exceptions.RayActorError as error:
                worker = remote.remote(factory)
                queue.fail(index, error)
            except ray.exceptions.RayTaskError as error:
                queue.fail(index, error.cause)
            idle.append(worker)
    finally:
        if started:
            ray.shutdown()


def _import_ray() -> Any:
    # Ray reads these on import: no usage statistics, no warning about idle GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    return ray
