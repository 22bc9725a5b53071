"""A small regression with two modules, two optimisers, and dropout from three generators."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eligo.config import Config
from eligo.train import (
    AnnealConfig,
    OptimizerConfig,
    OptimizerSpec,
    Progress,
    ScheduleConfig,
    StepOutput,
    Task,
    TrainConfig,
    epoch_batches,
    seed_everything,
)


class ToyConfig(Config):
    task: str = "toy_task:ToyConfig"
    train: TrainConfig = TrainConfig()
    body: OptimizerConfig = OptimizerConfig(lr=3e-3, schedule=ScheduleConfig(warmup=0.1))
    head: OptimizerConfig = OptimizerConfig(lr=1e-2, schedule=ScheduleConfig(kind="linear"))
    temperature: AnnealConfig = AnnealConfig()
    noise: bool = True
    width: int = 16
    nonfinite_steps: tuple[int, ...] = ()

    def build(self) -> "ToyTask":
        seed_everything(self.train.seed)
        return ToyTask(self)


class Head(nn.Module):
    """Linear layer with a bounded scale that must not decay."""

    no_weight_decay = ("scale",)
    lr_multiplier = {"scale": 10.0}  # noqa: RUF012

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.scale = nn.Parameter(torch.ones(1, 1))

    def project_(self) -> None:
        self.scale.clamp_(0.9, 1.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


class ToyTask(Task):
    def __init__(self, config: ToyConfig) -> None:
        self.config: ToyConfig = config
        self.body = nn.Sequential(nn.Linear(8, config.width), nn.GELU())
        self.head = Head(config.width)
        self.modules = {"body": self.body, "head": self.head}
        self.optimizers = {
            "body": OptimizerSpec(config.body, ("body",)),
            "head": OptimizerSpec(config.head, ("head",)),
        }
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(96, 8, generator=generator)
        y = (x[:, :2].prod(1, keepdim=True) + x[:, 2:].sum(1, keepdim=True)).sin()
        self.examples = list(zip(x[:64], y[:64], strict=True))
        self.x_validation, self.y_validation = x[64:], y[64:]
        self.seen: list[float] = []

    def to(self, device: torch.device) -> None:
        super().to(device)
        self.x_validation = self.x_validation.to(device)
        self.y_validation = self.y_validation.to(device)

    def batches(
        self, start_step: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[Any]:
        train = self.config.train
        for x, y in epoch_batches(
            self.examples, train.batch_size, train.seed, start_step, rank, world_size
        ):
            yield x.to(device), y.to(device)

    def step(self, batch: tuple[Tensor, Tensor], progress: Progress) -> StepOutput:
        x, y = batch
        temperature = progress.anneal(self.config.temperature)
        self.seen.append(temperature)
        if self.config.noise:
            x = nn.functional.dropout(x, 0.1) + 0.01 * random.random()
            x = x + torch.as_tensor(0.01 * np.random.rand(), dtype=x.dtype)
        prediction = self.head(self.body(x))
        loss = (prediction - y).square().mean()
        if progress.step in self.config.nonfinite_steps:
            loss = loss * float("nan")
        size = 1e-4 * prediction.square().mean()
        return StepOutput(
            {"fit": loss, "size": size},
            {"temperature": temperature, "error": (prediction - y).abs().mean().detach()},
        )

    def evaluate(self) -> dict[str, float]:
        prediction = self.head(self.body(self.x_validation))
        return {"loss": (prediction - self.y_validation).square().mean().item()}


def toy(out: Path, name: str = "run", **changes: Any) -> ToyTask:
    """A task whose run goes to out/name; changes are dotted config keys with _ for the dot."""
    base = {
        "train.out": str(out),
        "train.name": name,
        "train.total_steps": 12,
        "train.batch_size": 16,
        "train.log_every": 1,
        "train.evaluate_every": 4,
        "train.checkpoint_every": 4,
    }
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return ToyConfig().replace(base | dotted).build()
