"""On a GPU: no synchronisation inside a step; fp16 finds its loss scale."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_task import ToyTask, toy

from eligo.train import Progress, StepOutput, fit

pytestmark = pytest.mark.gpu


class OnDevice(ToyTask):
    """Data that lives on the device, as generated scenes do."""

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Any]:
        x = torch.stack([x for x, _ in self.examples]).to(device)
        y = torch.stack([y for _, y in self.examples]).to(device)
        while True:
            yield x[:16], y[:16]

    def step(self, batch: tuple[Tensor, Tensor], progress: Progress) -> StepOutput:
        # Stays on from the first step to the line that is logged: nothing between may wait.
        torch.cuda.set_sync_debug_mode("error")
        return super().step(batch, progress)

    def evaluate(self) -> dict[str, float]:
        torch.cuda.set_sync_debug_mode("default")
        return super().evaluate()

    def after_step(self, progress: Progress, optimizers: Any) -> None:
        if (progress.step + 1) % self.config.train.log_every == 0:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_steps_do_not_wait_for_the_device(tmp_path: Path, precision: str) -> None:
    options = {"train__log_every": 6, "train__evaluate_every": 12, "train__checkpoint_every": 12}
    config = toy(tmp_path, noise=False, train__precision=precision, **options).config
    task = OnDevice(config)
    try:
        result = fit(task, config.train)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert result.last_step == 12
    assert all(parameter.isfinite().all() for parameter in task.head.parameters())


def test_fp16_trains_and_resumes(tmp_path: Path) -> None:
    options = {"train__precision": "fp16", "train__total_steps": 40}
    whole = toy(tmp_path, "whole", **options)
    result = fit(whole, whole.config.train)
    assert result.skipped < 20
    parts = toy(tmp_path, "parts", **options)
    fit(parts, parts.config.train, on_evaluate=lambda step, _: step == 16)
    parts = toy(tmp_path, "parts", **options)
    again = fit(parts, parts.config.train, resume=True)
    assert again.skipped == result.skipped
    assert again.best["loss"] == pytest.approx(result.best["loss"], rel=1e-2)
