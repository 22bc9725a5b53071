"""Where to run: what a user calls a device, as one that is there."""

import torch

from eligo.errors import InputError
from eligo.io.reading import reason


def resolve_device(name: str) -> torch.device:
    """The device of that name; `auto` takes a GPU if there is one.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(
            f"device: got {name!r}, expected auto, cpu or cuda (cuda:1 is the second GPU)"
        ) from None
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts
        why = reason(error).partition(". ")[0]
        raise InputError(
            f"device: got {name!r}, which cannot be used here ({why}); say cpu, or auto for what "
            "there is"
        ) from None
    return device
