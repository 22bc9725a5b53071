"""Weights as safetensors, one file per module, and their moving average.

Tied tensors are stored once, under their first name. Loading is strict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from eligo.errors import InputError
from eligo.io.files import checked_name
from eligo.io.reading import reading
from eligo.io.tensors import save_tensors
from eligo.pretrained.load import misfits, not_finite, refuse_misfits
from eligo.pretrained.untrusted import read_header

ModuleT = TypeVar("ModuleT", bound=nn.Module)
_FEW = 10_000_000  # weights; so many are always cheap to allocate


def named_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """Return parameters that require a gradient, as `<module>.<parameter>`; tied ones once."""
    seen: set[nn.Parameter] = set()
    found: dict[str, nn.Parameter] = {}
    for name, module in modules.items():
        for path, parameter in module.named_parameters(prefix=name):
            if parameter.requires_grad and parameter not in seen:
                found[path] = parameter
                seen.add(parameter)
    return found


def save_weights(
    folder: Path, modules: Mapping[str, nn.Module], dtype: torch.dtype | None = None
) -> None:
    """Write `<name>.safetensors` per module, with floats as `dtype`."""
    for name, module in modules.items():
        state = {
            key: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
            for key, tensor in _state(module).items()
        }
        save_tensors(folder / f"{checked_name(name)}.safetensors", state)


def load_weights(folder: Path, modules: Mapping[str, nn.Module]) -> None:
    """Load what `save_weights` wrote; a missing or unexpected weight is an error."""
    problems: list[str] = []
    for name, module in modules.items():
        problems += _fill(name, module, read_tensors(_file(folder, name)))
    refuse_misfits(folder, problems)


def _file(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; expected one of weights")
    if not (file := folder / f"{name}.safetensors").is_file():
        best = folder / "best"
        hint = f"; this is the folder of a run: try {best}" if best.is_dir() else ""
        raise InputError(f"no weights for {name!r} in {folder}: expected {file.name}{hint}")
    return file


def build_module(folder: Path, name: str, build: Callable[[], ModuleT]) -> ModuleT:
    """Build a module for the weights in a folder, without loading them.

    `build` is first called on the meta device: the sizes in a damaged config may be huge.
    """
    with torch.device("meta"):
        expected = sum(part.numel() for part in build().parameters())
    stored = sum(prod(shape) for _, shape in read_header(_file(folder, name)).values())
    if expected > 2 * stored + _FEW:
        raise InputError(
            f"{folder}: its config describes {expected} weights, but {name} holds {stored}; "
            "expected config and weights of one model: copy the folder again"
        )
    return build()


def read_pickled(path: Path, *, holds: str, made_by: str, allowed: Sequence[type] = ()) -> Any:
    """Read what `torch.save` wrote, if it holds only tensors, plain containers and `allowed`."""
    try:
        with torch.serialization.safe_globals(list(allowed)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # a damaged archive or a forbidden object
        raise InputError(
            f"{path}: no checkpoint, or one that holds more than {holds} and would run code when "
            f"read; expected what {made_by}"
        ) from None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, by name."""
    with reading(file, "a whole safetensors file: copy it again"):
        return load_file(file)


@torch.no_grad()
def _fill(name: str, module: nn.Module, stored: Mapping[str, Tensor]) -> list[str]:
    expected = _state(module)
    shapes = [
        f"{key}: {tuple(stored[key].shape)} stored, {tuple(value.shape)} expected"
        for key, value in expected.items()
        if key in stored and stored[key].shape != value.shape
    ]
    missing = [key for key in expected if key not in stored]
    unexpected = [key for key in stored if key not in expected]
    types = [
        f"{key}: {stored[key].dtype} stored, {value.dtype} expected"
        for key, value in expected.items()
        if key in stored and stored[key].is_floating_point() != value.is_floating_point()
    ]
    broken = not_finite(stored.items())
    problems = misfits(missing, unexpected, shapes, f"{name}.", types=types, broken=broken)
    if not problems:
        for key, value in expected.items():
            value.copy_(stored[key])
    return problems


def _state(module: nn.Module) -> dict[str, Tensor]:
    seen: set[tuple] = set()
    state: dict[str, Tensor] = {}
    for key, tensor in module.state_dict().items():
        identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and identity in seen:
            continue
        seen.add(identity)
        state[key] = tensor
    return state


class WeightAverage:
    """Exponential moving averages of all trained parameters; buffers stay as they are."""

    def __init__(self, modules: Mapping[str, nn.Module], decay: float) -> None:
        self.decay = decay
        self.parameters = named_parameters(modules)
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}

    def update(self, step: int) -> None:
        """Move towards the current weights, faster in early steps."""
        average = get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))
        average([*self.averages.values()], [*self.parameters.values()], None)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Use the averages in the modules within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self.parameters.items():
            raw = parameter.data
            parameter.data = self.averages[name]
            self.averages[name] = raw
