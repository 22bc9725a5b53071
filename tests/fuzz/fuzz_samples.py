"""Valid inputs of every kind that commands read, created on first use in one folder.

A case gets copies (hard links) of those that it names, and damages some of them.
"""

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from eligo.cli import main
from eligo.config import SHIPPED as CONFIGS
from eligo.config import shipped_configs
from eligo.pretrained.load import SHIPPED as MODELS

_SIZE = (64, 48)
_WORDS = "table"


class Samples:
    """The folder of all samples; `link` copies one into the folder of a case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        """Path of a sample, which is created on first use."""
        if name not in self._made:
            self._made[name] = _MAKERS[name](self)
        return self._made[name]

    def link(self, name: str, folder: Path) -> Path:
        """A copy of a sample in a folder; its files may be replaced, not written into."""
        source = self.path(name)
        target = folder / source.name
        if not target.exists():
            if source.is_dir():
                shutil.copytree(source, target, copy_function=os.link, symlinks=True)
            else:
                os.link(source, target)
        for other in _BESIDE.get(name, ()):
            self.link(other, folder)
        return target

    def file(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        return path

    def lines(self, name: str, rows: list[dict]) -> Path:
        return self.file(name, "".join(json.dumps(row) + "\n" for row in rows))

    def run(self, *args: str) -> None:
        """Runs a command that must succeed, in the folder of the samples."""
        before = Path.cwd()
        os.chdir(self.root)
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as messages:
                code = main(args)
            assert code == 0, (args, messages.getvalue())
        finally:
            os.chdir(before)


def _picture(samples: Samples, name: str, mode: str = "RGB") -> Path:
    values = np.random.default_rng(0).integers(1, 30, (*_SIZE[::-1], 3), dtype=np.uint8)
    path = samples.root / name
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(values if mode == "RGB" else values[..., 0]).save(path)
    return path


def _photos(samples: Samples) -> Path:
    for number in range(3):
        _picture(samples, f"photos/{number}.png")
    return samples.root / "photos"


def _depth(samples: Samples) -> Path:
    path = samples.root / "depth.npy"
    np.save(path, np.full(_SIZE[::-1], 1500, dtype=np.uint16))
    return path


def _weights(samples: Samples) -> Path:
    path = samples.root / "weights.safetensors"
    save_file({"input_proj.weight": torch.ones(4, 4), "wall": torch.ones(3)}, path)
    return path


def _checkpoint(samples: Samples) -> Path:
    path = samples.root / "checkpoint.pth"
    torch.save({"model": {"input_proj.weight": torch.ones(4, 4)}, "opt": {"a": 1}}, path)
    return path


def _questions(samples: Samples) -> Path:
    rows = [{"question_id": n, "image_id": n, "question": f"What is {n}?"} for n in range(3)]
    return samples.file("questions.json", json.dumps({"questions": rows}))


def _annotations(samples: Samples) -> Path:
    rows = [{"question_id": n, "answers": [{"answer": "a cat"}]} for n in range(3)]
    return samples.file("annotations.json", json.dumps({"annotations": rows}))


def _vqa_lines(samples: Samples) -> Path:
    row = {"image": "photo.png", "question": "What colour is it?", "answers": ["red", "blue"]}
    return samples.lines("vqa.jsonl", [{**row, "id": str(n)} for n in range(3)])


def _examples(samples: Samples) -> Path:
    rows = [{"id": str(n), "input": f"Is {n} odd?", "output": str(n)} for n in range(10)]
    return samples.lines("examples.jsonl", rows)


def _vectors(samples: Samples) -> Path:
    path = samples.root / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(10, 4)))
    return path


def _karpathy(samples: Samples) -> Path:
    rows = [
        {"filename": f"{n}.png", "imgid": n, "split": "test", "sentences": [{"raw": "a cat"}] * 5}
        for n in range(3)
    ]
    return samples.file("captions.json", json.dumps({"images": rows}))


def _dense(samples: Samples) -> Path:
    return samples.lines("dense.jsonl", [{"image_id": n, "text": "a red cat"} for n in range(3)])


def _pixel_lines(samples: Samples) -> Path:
    row = {"image": "photo.png", "depth": "depth.npy", "label": "label.png", "tags": [_WORDS]}
    return samples.lines("pixels.jsonl", [{"id": str(n), **row} for n in range(3)])


def _legacy(samples: Samples) -> Path:
    rows = {name: {"icds": ["1", "2"], "scores": [1.0, 0.5]} for name in "0345"}
    return samples.file("legacy.json", json.dumps(rows))


def _index(samples: Samples) -> Path:
    samples.path("photos")
    samples.run("patches", "index", "photos", "--out", "index", "--device", "cpu")
    return samples.root / "index"


def _features(samples: Samples) -> Path:
    samples.path("karpathy")
    samples.path("photos")
    args = ("--captions", "captions.json", "--images", "photos", "--cache", "features")
    samples.run("patches", "evaluate", *args, "--device", "cpu")
    return samples.root / "features"


def _embedded(samples: Samples) -> Path:
    samples.path("examples")
    samples.run("shots", "embed", "--data", "examples.jsonl", "--out", "embedded")
    return samples.root / "embedded"


def _taught(samples: Samples) -> Path:
    samples.path("embedded")
    args = ("--data", "embedded", "--out", "taught", "--shots", "2", "--beam", "1")
    samples.run("shots", "teach", *args, "--sampler.num_candidates", "4")
    return samples.root / "taught"


def _selector(samples: Samples) -> Path:
    samples.path("embedded")
    samples.path("legacy")
    args = ("--data.path", "legacy.json", "--data.embedded", "embedded", "--train.num_epochs", "1")
    samples.run("shots", "train", "v1", *args, "--train.out", "selectors")
    return samples.root / "selectors"


def _run(samples: Samples) -> Path:
    """A finished training, to resume, search and predict from."""
    samples.run("patches", "train", "scenes_global", "--smoke", "--train.out", "runs")
    return samples.root / "runs"


def _records(samples: Samples) -> Path:
    samples.path("photo")
    args = ("--image", "photo.png", "--text", "a cat", "--out", "explored", "--device", "cpu")
    samples.run("patches", "predict", *args)
    return samples.root / "explored"


def _config(samples: Samples, name: str) -> Path:
    path = samples.root / f"{name.replace('/', '_')}.yaml"
    shutil.copy(CONFIGS / f"{name}.yaml", path)
    return path


def _model(samples: Samples, name: str) -> Path:
    path = samples.root / f"model_{name}"
    shutil.copytree(MODELS / name, path)
    return path


MODEL_NAMES = ("shots_v1", "patches", "pixels", "tokens_default", "vlm")

_MAKERS: dict[str, Callable[[Samples], Path]] = {
    "photo": lambda samples: _picture(samples, "photo.png"),
    "label": lambda samples: _picture(samples, "label.png", "L"),
    "photos": _photos,
    "depth": _depth,
    "weights": _weights,
    "checkpoint": _checkpoint,
    "questions": _questions,
    "annotations": _annotations,
    "vqa_lines": _vqa_lines,
    "tabs": lambda samples: samples.file("lines.tsv", "photo.png\tWhat is it?\tred\n"),
    "examples": _examples,
    "vectors": _vectors,
    "karpathy": _karpathy,
    "dense": _dense,
    "pixel_lines": _pixel_lines,
    "texts": lambda samples: samples.lines("texts.jsonl", [{"text": "a red cat"}]),
    "classes": lambda samples: samples.file("classes.txt", "wall\nfloor\ntable\n"),
    "legacy": _legacy,
    "index": _index,
    "features": _features,
    "embedded": _embedded,
    "taught": _taught,
    "selectors": _selector,
    "runs": _run,
    "explored": _records,
    **{f"config {n}": lambda samples, n=n: _config(samples, n) for n in shipped_configs()},
    **{f"model {n}": lambda samples, n=n: _model(samples, n) for n in MODEL_NAMES},
}

_BESIDE = {"vqa_lines": ("photo",), "tabs": ("photo",), "pixel_lines": ("photo", "depth", "label")}
"""Samples that the lines of a file refer to."""
