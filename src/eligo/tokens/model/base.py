"""Learned modules that are saved on their own: `<file_name>.safetensors` and `<file_name>.json`.

A training checkpoint has the weights and the `config.yaml` of the run instead of the JSON file; a
module loads from there too, and takes its sizes from the shapes of the weights.
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

ModuleT = TypeVar("ModuleT", bound="PretrainedModule")
Shapes = Mapping[str, tuple[int, ...]]


class PretrainedModule(nn.Module):
    """Base class of merger, pruners and discriminator."""

    file_name: ClassVar[str]
    """Stem of its files."""
    shape_type: ClassVar[type[Config]]
    """Config of its sizes."""

    def __init__(self, shape: Config) -> None:
        super().__init__()
        self.shape = shape

    @staticmethod
    @abstractmethod
    def shape_from_run(run: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
        """Return the fields of `shape_type`, from a run's config and the shapes of its weights."""

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write both files, floats as `dtype`."""
        folder = Path(folder)
        save_weights(folder, {self.file_name: self}, dtype)
        shape = json.dumps(self.shape.model_dump(mode="json"), indent=1)
        write_text(folder / f"{self.file_name}.json", shape + "\n")

    @classmethod
    def from_pretrained(cls: type[ModuleT], name: str | Path) -> ModuleT:
        """Load a module in float32 and eval mode.

        `name` is a folder (saved module, checkpoint, or run: its best checkpoint), a plan shipped
        with eligo, or a name on the hub.
        """
        weights = f"{cls.file_name}.safetensors"
        given = find_model(name, weights)
        folder = next((f for f in (given, given / "best") if (f / weights).is_file()), None)
        if folder is None:
            raise InputError(
                f"{given}: no {weights} in it; expected the folder of a saved module, of a "
                "checkpoint or of a run"
            )
        described, run = folder / f"{cls.file_name}.json", folder / "config.yaml"
        if described.is_file():
            shape = read_object(described, f"{cls.__name__}.save_pretrained")
        elif run.is_file():
            header = read_header(folder / weights)
            shapes = {name: tuple(shape) for name, (_, shape) in header.items()}
            with reading(run, "the config of a run of `eligo tokens train`"):
                shape = cls.shape_from_run(read_yaml(run)[0], shapes)
        else:
            raise InputError(
                f"{folder}: got {weights} without {described.name} or a run's config.yaml; "
                "expected one of them beside it: write it with save_pretrained"
            )
        with reading(described if described.is_file() else run, f"the sizes of a {cls.__name__}"):
            sizes = load_config(cls.shape_type, shape)
            module = build_module(folder, cls.file_name, lambda: cls(sizes))
        load_weights(folder, {cls.file_name: module})
        return module.eval()
