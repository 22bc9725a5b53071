"""Teaching on workers of Ray (slow to start)."""

from pathlib import Path

import pytest
from teach_cases import FakeScorer, KillingScorer, embedded, files_of, teach_config

from eligo.shots.teacher.run import teach


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
