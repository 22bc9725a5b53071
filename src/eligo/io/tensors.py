"""Write tensors to safetensors files, by the rules of `eligo.io.files`."""

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
    """Write tensors of any device and memory layout."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(path, make_folder=make_folder) as temporary:
        save_file(stored, temporary, metadata)
