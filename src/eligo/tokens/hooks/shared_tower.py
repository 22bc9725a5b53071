"""One run of the vision tower for several plans that see the same images in turn."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession


@dataclass(frozen=True)
class _Call:
    """A call of a tower, its output, and the attention rows that were recorded."""

    tower: nn.Module
    inputs: tuple[Any, ...]
    output: Any
    rows: Mapping[str, list[Tensor]]


class SharedTower:
    """The latest call of a vision tower without gradients.

    A call with equal inputs gets its results. The tower runs again for a plan that needs attention
    rows which were not recorded.
    """

    def __init__(self) -> None:
        self._latest: _Call | None = None

    def __call__(
        self,
        tower: nn.Module,
        session: "PruningSession | None",
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return the output of `run`; the session's host gets the attention rows."""
        if torch.is_grad_enabled():
            return run(*args, **kwargs)
        latest, known = self._latest, {}
        needs, found = (), {}
        if session is not None:
            needs = [need for each in session.tower_needs().values() for need in each]
            found = session.host.tower_rows
        if latest is not None and latest.tower is tower and _equal(latest.inputs, (args, kwargs)):
            known = latest.rows
            if all(need in known for need in needs):
                for need in needs:
                    found[need].extend(known[need])
                return _copy(latest.output)
        output = run(*args, **kwargs)
        rows = {**known, **{need: list(found[need]) for need in needs}}
        inputs = _cloned((args, kwargs))  # the caller may change them in place
        self._latest = _Call(tower, inputs, _copy(output), rows)
        return output


SHARED: ContextVar[SharedTower | None] = ContextVar("eligo_shared_tower", default=None)
"""The tower that plans share in this thread or task; None: each runs it."""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
        return alike and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


def _cloned(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _cloned(value) for key, value in inputs.items()}
    if isinstance(inputs, (list, tuple)):
        return tuple(map(_cloned, inputs))
    return inputs.clone() if isinstance(inputs, Tensor) else inputs


def _copy(output: Any) -> Any:
    """Return the same tensors in an output of its own: `get_image_features` changes its fields."""
    return type(output)(**output) if isinstance(output, ModelOutput) else output
