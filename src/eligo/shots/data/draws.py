"""Draws that depend on a seed and a query's id only: not on the batch, the order, the machine."""

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.train.rng import mix


def generator(seed: int, name: str) -> torch.Generator:
    """Of a query: the same one every time."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return torch.Generator().manual_seed(mix(seed, number))


def shuffled(rows: Int[Tensor, " rows"], seed: int, name: str) -> Int[Tensor, " rows"]:
    """The same rows in an order of the query's own.

    >>> sorted(shuffled(torch.tensor([4, 7, 9]), 0, "query").tolist())
    [4, 7, 9]
    """
    return rows[torch.randperm(len(rows), generator=generator(seed, name))]
