"""Teaching on workers of Ray (slow to start)."""

from pathlib import Path

import pytest
from teach_cases import FakeScorer, KillingScorer, embedded, files_of, teach_config

from eligo.shots.inference.embed import open_embedded
from eligo.shots.teacher.run import _ray_worker, teach
from eligo.shots.teacher.shards import finish, keep_files


def test_ray_gives_the_same_files_after_a_killed_worker(tmp_path: Path):
    pytest.importorskip("ray", reason="ray is not installed (extra: ray)")
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    mark = tmp_path / "killed"
    # By value: the workers cannot import the tests.
    import ray.cloudpickle as pickle
    import teach_cases

    pickle.register_pickle_by_value(teach_cases)
    far = config.replace({"out": tmp_path / "far", "engine": "ray", "num_workers": 2})
    assert teach(far, lambda *_: KillingScorer(mark, "t5"))["taught"] == 18
    assert mark.exists()
    assert files_of(far.out) == files_of(config.out)


def test_workers_without_a_shared_folder_return_their_files(tmp_path: Path):
    """A worker of another machine: the folder is missing there, or is one of another run."""
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    pool, queries, _ = open_embedded(config.data)
    meta = (config.out / "meta.json").read_bytes()
    for there in ("missing", "other"):
        far, here = tmp_path / there, tmp_path / f"{there} here"
        if there == "other":
            far.mkdir()
            (far / "meta.json").write_bytes(b"{}")
            (far / "parts").mkdir()
            (far / "parts" / "00000.growing").write_bytes(b"{}\n")
        run = _ray_worker(
            config.replace({"out": far}), lambda *_: FakeScorer(), pool, queries, meta
        )
        for shard in range(5):
            files = run(shard)
            assert list(files) == [f"scores-{shard:05d}.safetensors", f"parts/{shard:05d}.jsonl"]
            keep_files(here, files)
            keep_files(here, files)
        assert finish(here, 5) == (18, 0, 0)
        expected = {
            name: file for name, file in files_of(config.out).items() if name != "meta.json"
        }
        assert files_of(here) == expected
    shared = _ray_worker(config, lambda *_: FakeScorer(), pool, queries, meta)
    assert shared(0) == {}
