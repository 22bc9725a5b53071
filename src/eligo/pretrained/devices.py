"""The device to run on."""

import torch

from eligo.errors import InputError
from eligo.io.reading import reason


def resolve_device(name: str) -> torch.device:
    """Return the device of a name, if it can be used; `auto` is a GPU if there is one.

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
            f"device: got {name!r}, which cannot be used here ({why}); give cpu, or auto to "
            "choose by what is available"
        ) from None
    return device
