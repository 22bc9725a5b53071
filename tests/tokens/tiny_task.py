"""A training task of a random narrow LLaVA: 16 vision tokens, 6 layers."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eligo.config import load_config
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.training.task import TokensTask

CPU = torch.device("cpu")
TINY = {
    "host.random": {"image_size": 56, "layers": 6, "width": 32, "vision_width": 24},
    "data.scenes.height": 56,
    "data.scenes.width": 56,
    "data.validation": 4,
    "data.questions_per_image": 2,
    "train.total_steps": 4,
    "train.batch_size": 4,
    "train.evaluate_every": 2,
    "train.checkpoint_every": 2,
    "train.log_every": 1,
    "merger": {"kind": "question_aware", "budget": 9, "dim": 8, "num_heads": 2},
    "pruners": {"layers": [1, 3], "budgets": [6, 3], "dim": 8, "num_heads": 2},
    "discriminator.dim": 8,
}


def tiny(out: Path | None = None, **changes: Any) -> TokensTrainConfig:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    place = {} if out is None else {"train.out": out}
    return load_config(TokensTrainConfig, None, TINY | place | named)


def make(**changes: Any) -> TokensTask:
    """A task with enlarged random weights, so that outputs depend visibly on the input."""
    task = TokensTask(tiny(**changes))
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    return task


def first_batch(task: TokensTask):
    return next(task.batches(0, 0, 1, CPU))


def flat_gradient(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
