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
from torch import nn

from eligo.config import Config, load_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import find_model
from eligo.pretrained.untrusted import read_header
from eligo.train.weights import build_module, load_weights, save_weights

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
        described, run = folder / f"{cls.file_name}.json", folder / "config.yaml"
        if described.is_file():
            shape = read_object(described, f"{cls.__name__}.save_pretrained")
        elif run.is_file():
            shapes = _shapes(folder / f"{cls.file_name}.safetensors")
            with reading(run, "the config of a run of `eligo tokens train`"):
                shape = cls.shape_of_run(read_yaml(run)[0], shapes)
        else:
            raise InputError(
                f"{folder}: got {cls.file_name}.safetensors without {described.name} or a run's "
                "config.yaml; expected one of them beside it: write it with save_pretrained"
            )
        with reading(described if described.is_file() else run, f"the sizes of a {cls.__name__}"):
            sizes = load_config(cls.shape_type, shape)
            part = build_module(folder, cls.file_name, lambda: cls(sizes))
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


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, (_, shape) in read_header(path).items()}
