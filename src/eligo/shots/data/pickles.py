"""Refuse pickles, which can run any code when they are read. Imports no torch."""

from pathlib import Path

from eligo.errors import InputError

_PICKLES = (".pth", ".pt", ".pkl", ".pickle", ".bin", ".ckpt")


def is_pickle(path: Path) -> bool:
    """Whether a file is a pickle, by its suffix."""
    return path.suffix in _PICKLES


def refuse_pickle(path: Path) -> None:
    """Raise if a file is a pickle, with instructions to convert it."""
    if is_pickle(path):
        raise InputError(
            f"{path}: is a pickle, which can run any code when it is read, so it is not read; "
            f"convert it: weights by `eligo shots convert {path} --version v1 --out FOLDER` (which "
            "reads nothing but tensors), records by json.dump where you trust them"
        )
