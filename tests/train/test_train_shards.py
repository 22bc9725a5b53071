"""Local and Ray engines: order, failures, retries."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eligo.errors import InputError, MissingExtraError
from eligo.train import ShardFailure, map_shards


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One local Ray for all tests here: starting it is what takes long."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    yield ray
    ray.shutdown()


def squares(folder: Path) -> Callable[[], Callable[[int], int]]:
    """Leaves a file per worker built; shard 3 kills its worker the first time it is tried."""

    def factory() -> Callable[[int], int]:
        (folder / f"built_{os.getpid()}_{len(os.listdir(folder))}").touch()  # noqa: PTH208

        def function(shard: int) -> int:
            if shard == 5:
                raise ValueError("five is bad")
            if shard == 3 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return shard * shard

        return function

    return factory


def test_local_engine_keeps_order_and_collects_failures(tmp_path: Path) -> None:
    (tmp_path / "killed").touch()
    done: list[int] = []
    results = map_shards(squares(tmp_path), range(7), on_done=done.append)
    assert results == [0, 1, 4, 9, 16, ShardFailure(5, "ValueError: five is bad"), 36]
    assert done == list(range(1, 8))
    assert len(list(tmp_path.glob("built_*"))) == 1


def test_local_engine_retries() -> None:
    failures = iter([OSError("busy"), OSError("busy")])

    def once_in_three(shard: str) -> str:
        for error in failures:
            raise error
        return shard.upper()

    assert map_shards(lambda: once_in_three, ["a", "b"]) == ["A", "B"]


def test_ray_gives_the_same_results_after_a_killed_worker(tmp_path: Path, ray: Any) -> None:
    results = map_shards(squares(tmp_path), range(7), engine="ray", num_workers=2)
    assert results == [0, 1, 4, 9, 16, ShardFailure(5, "ValueError: five is bad"), 36]
    assert (tmp_path / "killed").exists()
    assert 2 <= len(list(tmp_path.glob("built_*"))) <= 3
    assert not ray.is_initialized()


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_first_failure_can_stop_the_map(engine: Any, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("ray")

    def full(shard: int) -> int:
        if shard == 1:
            raise OSError(28, "No space left on device")
        return shard

    done: list[int] = []
    with pytest.raises(OSError, match="No space left"):
        map_shards(lambda: full, [1] * 4, engine=engine, keep_going=False, on_done=done.append)
    assert done == []


def test_error_in_on_done_is_not_a_failed_shard() -> None:
    def stop(count: int) -> None:
        raise RuntimeError(f"enough after {count}")

    with pytest.raises(RuntimeError, match="enough after 1"):
        map_shards(lambda: str, [1, 2], on_done=stop)


def test_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"eligo\[ray\]"):
        map_shards(lambda: str, [1], engine="ray")


def test_invalid_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="num_workers 0"):
        map_shards(lambda: str, [1], num_workers=0)
