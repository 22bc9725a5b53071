"""A learned part that is saved and loaded alone: `<file_name>.safetensors` and `<file_name>.json`.

A checkpoint of a training run has the weights, but the run's whole `config.yaml` instead of the
JSON; a part loads from there too, and takes its widths from the shapes of the weights.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import safe_open
from torch import nn

from eligo.config import Config, load_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.files import write_text
from eligo.pretrained import find_model
from eligo.train.weights import load_weights, save_weights

PartT = TypeVar("PartT", bound="Part")
Shapes = Mapping[str, tuple[int, ...]]


class Part(nn.Module):
    """Base of merger, pruners and discriminator."""

    file_name: ClassVar[str]
    """Stem of its files."""
    shape_type: ClassVar[type[Config]]
    """What builds it: sizes, and nothing of the training."""

    def __init__(self, shape: Config) -> None:
        super().__init__()
        self.shape = shape

    @staticmethod
    @abstractmethod
    def shape_of_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """What `shape_type` needs, from a run's config and the shapes of its weights."""

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write both files; `dtype` stores floats in it."""
        folder = Path(folder)
        save_weights(folder, {self.file_name: self}, dtype)
        shape = json.dumps(self.shape.model_dump(mode="json"), indent=1)
        write_text(folder / f"{self.file_name}.json", shape + "\n")

    @classmethod
    def from_pretrained(cls: type[PartT], name: str | Path) -> PartT:
        """The part in a folder (its own, a checkpoint, or a run: its best), float32, eval mode.

        Or by the name of a plan that comes with eligo, or by its name on the hub.
        """
        folder = cls._find(find_model(name, f"{cls.file_name}.safetensors"))
        described = folder / f"{cls.file_name}.json"
        if described.is_file():
            shape = _read_json(described)
        elif (folder / "config.yaml").is_file():
            run = read_yaml(folder / "config.yaml")[0]
            shape = cls.shape_of_run(run, _shapes(folder / f"{cls.file_name}.safetensors"))
        else:
            raise InputError(
                f"{folder}: got {cls.file_name}.safetensors without {described.name} or a run's "
                "config.yaml; expected one of them beside it: write it with save_pretrained"
            )
        part = cls(load_config(cls.shape_type, shape))
        load_weights(folder, {cls.file_name: part})
        return part.eval()

    @classmethod
    def _find(cls, folder: Path) -> Path:
        for place in _places(folder):
            if (place / f"{cls.file_name}.safetensors").is_file():
                return place
        raise InputError(
            f"{folder}: no {cls.file_name}.safetensors in it; expected the folder of a saved part, "
            "of a checkpoint or of a run"
        )


def _places(folder: str | Path) -> tuple[Path, Path]:
    return Path(folder), Path(folder) / "best"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
