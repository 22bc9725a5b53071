"""What graphs depend on besides their inputs: modules, hooks and weights."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import nn

_KNOWN = ("torch.nn.", "transformers.", "eligo.")
"""Modules of classes whose result follows from inputs and weights alone: adapters, for example, can
be switched off. Hooks of torch are not among them."""


class ModelParts:
    """Some modules, with all modules in them."""

    def __init__(self, roots: Sequence[nn.Module]) -> None:
        modules = list(roots)
        for module in modules:  # grows; not `modules()`, which takes longer
            modules += [part for part in module._modules.values() if part is not None]
        self._roots, self._others = modules[: len(roots)], modules[len(roots) :]
        self._children = [module._modules for module in modules]
        self._found = self._structure()
        self._tensors = [x for module in modules for x in (module._parameters, module._buffers)]
        self._hooks = [
            hooks
            for module in modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._num_hooks, self._are_ours = -1, False
        self.is_known = not any(self._forwards()) and all(
            type(module).__module__.startswith(_KNOWN) for module in modules
        )

    def is_complete(self) -> bool:
        """Whether all modules are still in place, with their `forward`, and no other ones."""
        return self._structure() == self._found

    def _structure(self) -> list[Any]:
        parts = [part for children in self._children for part in children.values()]
        return parts + self._forwards()

    def _forwards(self) -> list[Any]:
        """Return what others have put in place of the `forward` of a class, by module."""
        return [
            *map(_forward_of_others, self._roots),
            *(vars(module).get("forward") for module in self._others),
        ]

    def weights(self, most: int | None = None) -> list[Any]:
        """Return where all weights lie, or the first of them."""
        tensors = (x for tensors in self._tensors for x in tensors.values() if x is not None)
        return [(x.data_ptr(), x.dtype) for x in islice(tensors, most)]

    def devices(self) -> set[torch.device]:
        """Return the devices of all weights."""
        return {x.device for tensors in self._tensors for x in tensors.values() if x is not None}

    def have_hooks_of_others(self) -> bool:
        """Whether others than eligo and transformers have hooks."""
        count = sum(map(len, self._hooks))
        if count != self._num_hooks:
            found = [hook for hooks in self._hooks for hook in hooks.values()]
            names = [str(getattr(hook, "__module__", "")) for hook in found]
            self._are_ours = all(name.startswith(_KNOWN[1:]) for name in names)
            self._num_hooks = count
        return not self._are_ours


def _forward_of_others(module: nn.Module) -> Any:
    """Return the `forward` that others gave a module around which `allow_replays` puts its own."""
    forward = vars(module).get("forward")
    forward = getattr(forward, "__wrapped__", forward)
    return None if getattr(forward, "__func__", None) is type(module).forward else forward
