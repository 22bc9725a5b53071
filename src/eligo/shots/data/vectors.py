"""Vectors from a file: NumPy, safetensors or Parquet.

    .npy          (items, dim), rows in the order of the items
    .safetensors  a tensor (items, dim) for each view, rows in that order; or one (dim,) for each id
    .parquet      a column `id` and a column of lists for each view (needs the extra `parquet`)

A single view of any name is `text`: what samplers and encoders of text compare.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from eligo.errors import InputError, MissingExtraError
from eligo.io.reading import reading

_ONLY = "text"


def read_vectors(path: str | Path, ids: Sequence[str]) -> dict[str, Tensor]:
    """Return a tensor (items, dim) for each view, with a row for each id."""
    path = Path(path)
    readers = {".npy": _read_numpy, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise InputError(
            f"{path}: got a file {path.suffix or 'without an ending'}, expected vectors as "
            f"{', '.join(readers)}"
        )
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; expected vectors as {', '.join(readers)}")
    views = readers[path.suffix](path, ids)
    if len(views) == 1:
        views = {_ONLY: next(iter(views.values()))}
    for name, view in views.items():
        if len(view) != len(ids):
            raise InputError(
                f"{path}: got {len(view)} vectors ({name}) for {len(ids)} items, expected one for "
                "each, in the same order"
            )
    return views


def _read_numpy(path: Path, ids: Sequence[str]) -> dict[str, Tensor]:
    with reading(path, "an array (items, dim) of floats that np.save wrote"):
        array = np.load(path, allow_pickle=False)
        if array.ndim == 1 and len(ids) == 1:
            array = array[None]
        if array.ndim != 2 or array.dtype.kind != "f":
            raise ValueError(f"got {array.dtype} of shape {array.shape}")
        return {_ONLY: torch.from_numpy(array.astype(np.float32))}


def _read_safetensors(path: Path, ids: Sequence[str]) -> dict[str, Tensor]:
    with reading(path, "tensors that safetensors wrote"):
        tensors = load_file(path)
    if tensors and all(tensor.ndim == 1 for tensor in tensors.values()):
        return {_ONLY: _stacked(path, tensors, ids)}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            raise InputError(
                f"{path}: {name}: got {tensor.dtype} of shape {tuple(tensor.shape)}, expected "
                "floats (items, dim), or (dim,) for each id"
            )
    return {name: tensor.float() for name, tensor in tensors.items()}


def _read_parquet(path: Path, ids: Sequence[str]) -> dict[str, Tensor]:
    try:
        from pyarrow import parquet, types
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", needed_by=str(path)) from None
    with reading(path, "a table that Parquet wrote"):
        table = parquet.read_table(path)
    lists = [
        field.name
        for field in table.schema
        if types.is_list(field.type)
        or types.is_large_list(field.type)
        or types.is_fixed_size_list(field.type)
    ]
    if "id" not in table.column_names or not lists:
        raise InputError(
            f"{path}: got the columns {', '.join(table.column_names)}, expected id and a column of "
            "lists of numbers for each view"
        )
    names = [str(name) for name in table["id"].to_pylist()]
    return {
        column: _stacked(path, dict(zip(names, table[column].to_pylist(), strict=True)), ids)
        for column in lists
    }


def _stacked(path: Path, by_id: dict[str, Any], ids: Sequence[str]) -> Tensor:
    """Return the vectors of these ids; names the first that is missing or differs in width."""
    rows: list[Tensor] = []
    for name in ids:
        if name not in by_id:
            raise InputError(
                f"{path}: has no vector for {name!r} ({len(by_id)} for others); expected one for "
                "each item"
            )
        with reading(f"{path}: {name!r}", "a list of numbers"):
            rows.append(torch.as_tensor(by_id[name], dtype=torch.float32))
        if rows[-1].shape != rows[0].shape:
            raise InputError(
                f"{path}: {name!r}: got width {len(rows[-1])}, expected {len(rows[0])}, the width "
                f"of {ids[0]!r}"
            )
    return torch.stack(rows) if rows else torch.zeros(0, 0)
