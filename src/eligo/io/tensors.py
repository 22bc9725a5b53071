"""Tensors in safetensors files, written like all other output (see `eligo.io.files`)."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from eligo.io.files import writing


def save_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: dict[str, str] | None = None,
    *,
    make_folder: bool = True,
) -> None:
    """Write tensors, wherever they are and however they lie in memory."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(path, make_folder=make_folder) as temporary:
        save_file(stored, temporary, metadata)
