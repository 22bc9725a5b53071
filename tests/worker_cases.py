"""Comparisons for the tests of worker processes."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WORKERS = (0, 1, 3)


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors inside a batch."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return [t for field in fields(value) for t in tensors_of(getattr(value, field.name))]
    if isinstance(value, Mapping):
        return [t for name in sorted(value) for t in tensors_of(value[name])]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [t for part in value for t in tensors_of(part)]
    return []


def assert_same_batches(first: Sequence[Any], second: Sequence[Any]) -> None:
    """Bit for bit, NaN included."""
    assert len(first) == len(second) > 0
    for one, other in zip(map(tensors_of, first), map(tensors_of, second), strict=True):
        assert len(one) == len(other) > 0
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a.nan_to_num(), b.nan_to_num())


def assert_same_weights(first: Path, second: Path) -> None:
    """All weights of two checkpoints, bit for bit."""
    names = sorted(path.name for path in first.glob("*.safetensors"))
    assert names == sorted(path.name for path in second.glob("*.safetensors"))
    assert names
    for name in names:
        one, other = load_file(first / name), load_file(second / name)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name


def sent(dataset: Any) -> Any:
    """What a worker receives where processes are not forked (macOS, Windows)."""
    return pickle.loads(pickle.dumps(dataset))
