"""Rooms exported to disk for the tests of readers, training and commands."""

from pathlib import Path

from eligo.scenes.config import ROOMS
from eligo.scenes.export import ExportConfig, export_scenes

SCENES = ROOMS.replace({"height": 48, "width": 64})


def exported(out: Path, kind: str, **changes) -> Path:
    settings = {"format": kind, "scenes": SCENES, "train": 10, "validation": 0, "test": 4,
                "image": "png", "questions": 0, "captions": 0, **changes}  # fmt: skip
    export_scenes(ExportConfig(**settings), out)
    return out
