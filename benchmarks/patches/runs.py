"""The embedded exam: does selecting patches cost anything, and does it look where the text says?

For every seed a vision encoder first learns what patches show; then every arm trains from it for
the same steps, on the same scenes in the same order, and is measured on test scenes with attribute
pairs it has never seen. Runs are folders: what is there is not made again. Several processes may
work in one folder, of one command (`workers`) or of several: each takes a run that no other is at.
On one GPU a single one of these small models would leave most of it idle.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from jaxtyping import Float
from torch import Tensor

from benchmarks.patches.config import ExamConfig
from benchmarks.patches.leak import leak_test
from benchmarks.patches.pointing import pointing
from benchmarks.patches.summary import summarise
from eligo.io.files import write_text
from eligo.io.locks import FileLock
from eligo.io.reading import read_json, reading
from eligo.patches.data.config import ScenesDataConfig
from eligo.patches.data.scene_source import SceneSet, SceneSource
from eligo.patches.inference.evaluate import score_set
from eligo.patches.metrics import AT, DirectionMetrics, retrieval_metrics
from eligo.patches.model.net import CrossSparseAggrNet
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.training.config import PatchesTrainConfig
from eligo.patches.training.task import train_model
from eligo.report.provenance import provenance

RESULT = "result.json"
_POINTS = 100.0
_WAIT = 0.5  # seconds before looking again whether there is something to do
Tell = Callable[[int, str], None]


class Exam:
    """All runs of an exam, in one folder."""

    def __init__(self, config: ExamConfig, out: Path) -> None:
        self.config, self.out = config, out
        device = PartialState().device  # where the loop trains
        assert device is not None
        self.device = device
        data = config.see_run(config.seeds[0]).data
        assert isinstance(data, ScenesDataConfig)
        self.source = SceneSource(data, device, dense=False, see=True)
        self._test: SceneSet | None = None

    @property
    def test(self) -> SceneSet:
        """The test scenes."""
        if self._test is None:
            data, config = self.source.config, self.config
            self._test = SceneSet(
                data.scenes, "test", config.test_images, config.test_captions, self.device
            )
        return self._test

    def run(self, workers: int = 1, tell: Tell = lambda *_: None) -> dict[str, Any]:
        """Train and measure what is missing, `workers` runs at a time; the whole result."""
        # Fresh processes: a forked one could not use a GPU. One that dies costs no run: its lock
        # goes with it, and another process takes the run.
        count = min(workers, len(self._missing())) - 1
        arguments = (self.config, self.out)
        helpers = [
            get_context("spawn").Process(target=_help, args=arguments, daemon=True)
            for _ in range(count)
        ]
        for helper in helpers:
            helper.start()
        self.work(tell)
        for helper in helpers:
            helper.join()
        results: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in self.config.arms}
        for arm, seed in self._runs():
            found = self._found(self._arm_run(arm, seed))
            assert found is not None
            results[arm][seed] = found
        return summarise(self.config, results)

    def work(self, tell: Tell = lambda *_: None) -> None:
        """Make runs until none is missing; what other processes are at is waited for."""
        total = len(self._runs())
        while missing := self._missing():
            tell(total - len(missing), "results")
            if not any(self._make(*run) for run in missing):
                time.sleep(_WAIT)
        tell(total, "results")

    def measure(self, model: RetrievalModel) -> dict[str, Any]:
        """Retrieval, pointing and leak of one model on the test scenes."""
        metrics = retrieval_metrics(score_set(model, self.test), self.test.positive)
        per_scene = _per_scene(metrics.image_to_text, metrics.text_to_image, self.test)
        found: dict[str, Any] = {"metrics": metrics.as_dict(), "per_scene": per_scene.tolist()}
        if isinstance(model.net, CrossSparseAggrNet):
            found["pointing"] = pointing(model, self.test)
            if model.uses_dense:
                found["leak"] = leak_test(model, self.test)
        return found

    def _runs(self) -> list[tuple[str, int]]:
        return [(arm, seed) for seed in self.config.seeds for arm in self.config.arms]

    def _missing(self) -> list[tuple[str, int]]:
        return [run for run in self._runs() if self._found(self._arm_run(*run)) is None]

    def _see_run(self, seed: int) -> PatchesTrainConfig:
        return self.config.see_run(seed).replace({"train.out": self.out})

    def _arm_run(self, arm: str, seed: int) -> PatchesTrainConfig:
        eyes = self._see_run(seed).train.folder / "model" / "vision"
        return self.config.arm_run(arm, seed, str(eyes)).replace({"train.out": self.out})

    def _make(self, arm: str, seed: int) -> bool:
        """Make a run, or first the encoder that it begins with; False if another process does."""
        see, run = self._see_run(seed), self._arm_run(arm, seed)
        sees = self._found(see) is not None
        config = run if sees else see
        with claimed(self.out / "locks" / config.train.name) as mine:
            if mine and self._found(config) is None:  # nobody finished it just now
                began = time.monotonic()
                dense = config.model.match.dense
                source = self.source.beside(dense=dense, see=not sees)
                best = train_model(config, resume=True, source=source).best
                trained = time.monotonic()
                found = self._asked(config) | {"validation": best}
                if sees:
                    model = RetrievalModel.from_pretrained(config.train.folder, device=self.device)
                    found |= {"arm": arm, "seed": seed} | self.measure(model)
                found["seconds"] = {"train": trained - began, "measure": time.monotonic() - trained}
                found["made"] = provenance("eligo", str(self.device))
                write_text(config.train.folder / RESULT, json.dumps(found) + "\n")
        return mine

    def _asked(self, config: PatchesTrainConfig) -> dict[str, Any]:
        """All that a result depends on; not the folder, which may be moved."""
        elsewhere = {"train.out": Path(), "model.encoders.vision": None}
        see = self.config.see_run(config.train.seed)
        return {
            "asked": config.replace(elsewhere).model_dump(mode="json"),
            "eyes": see.model_dump(mode="json"),
            "test": [self.config.test_images, self.config.test_captions],
        }

    def _found(self, config: PatchesTrainConfig) -> dict[str, Any] | None:
        """What a run came to, if it is there and was made as this exam asks for."""
        path = config.train.folder / RESULT
        if not path.is_file():
            return None
        with reading(path, "the result of a run; remove it to run again"):
            found = read_json(path)
            return found if found.items() >= self._asked(config).items() else None


def _help(config: ExamConfig, out: Path) -> None:
    Exam(config, out).work()


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process alone works on something now; a process that ends claims nothing."""
    lock = FileLock.acquire(path)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _per_scene(
    image_to_text: DirectionMetrics, text_to_image: DirectionMetrics, scenes: SceneSet
) -> Float[Tensor, " scenes"]:
    """Each scene's part in the mean of the six recalls, in points: as a query, and its captions."""
    hits = [
        torch.stack([(side.ranks < k) for k in AT]).double().mean(0)
        for side in (image_to_text, text_to_image)
    ]
    of_captions = hits[1].view(len(scenes), -1).mean(1)
    return (_POINTS * (hits[0] + of_captions) / 2).cpu()
