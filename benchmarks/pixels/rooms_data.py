"""The files of the study on rooms: NYUv2's official split as JSON lines, its tags, a word table.

NYUv2 is a folder with rgb, depth and label (NYU40; 0 is unlabelled), and train.txt and test.txt
with one frame number per line. The last of the 40 classes, "otherprop", is not scored.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from benchmarks.pixels.rooms_tagger import frame_features, tag_frames
from eligo.errors import InputError
from eligo.io.files import kept_json, write_text
from eligo.io.reading import numbered_lines
from eligo.io.tensors import save_tensors
from eligo.pixels.data.classes import NYU_40
from eligo.pixels.text.word_table import make_word_table

Tags = Literal["true", "tagger", "other"]
CLASSES = tuple(name.replace("refridgerator", "refrigerator") for name in NYU_40[:39])
"""The scored classes; the text encoder gets the usual spelling."""
SPLITS = ("train", "test")
_LEAST = 0.001  # share of a frame's pixels that a class needs to be a tag


def prepare(root: Path, out: Path, vision: str, text: str, device: torch.device) -> dict[str, Any]:
    """Write all files to a folder; return how good the tagger is, and the width of a word.

    What needs the encoders (made.json, words.safetensors, tags_tagger.jsonl) is made once, and may
    be copied to a machine without them.
    """
    frames = {split: _frames(root, split) for split in SPLITS}
    for split, found in frames.items():
        _write_lines(out / f"{split}.jsonl", found)
    write_text(out / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    train, test = (_shown(found) for found in frames.values())
    every = [frame for found in frames.values() for frame in found]
    others = torch.cat([shown.roll(-(len(shown) // 2), 0) for shown in (train, test)])
    _write_tags(out, "true", every, torch.cat((train, test)))
    _write_tags(out, "other", every, others)

    def encode() -> dict[str, Any]:
        table = make_word_table(text, CLASSES, device=device)
        save_tensors(out / "words.safetensors", table)
        features = frame_features(vision, [Path(frame["image"]) for frame in every], device)
        found = tag_frames(features[: len(train)], features[len(train) :], train)
        _write_tags(out, "tagger", every, torch.cat((found.train, found.test)))
        tagger = {
            "threshold": found.threshold,
            "train": precision_recall(found.train, train),
            "test": precision_recall(found.test, test),
            "another frame's": precision_recall(others, torch.cat((train, test))),
        }
        return {"text_dim": len(table[CLASSES[0]]), "tagger": tagger}

    key = {"vision": vision, "text": text, "frames": [len(train), len(test)]}
    return kept_json(out / "made.json", key, encode)


def _write_tags(
    out: Path,
    name: Tags,
    frames: Sequence[Mapping[str, str]],
    shown: Bool[Tensor, "frames classes"],
) -> None:
    rows = [
        {"id": frame["id"], "tags": [CLASSES[number] for number in row.nonzero()[:, 0].tolist()]}
        for frame, row in zip(frames, shown, strict=True)
    ]
    _write_lines(out / f"tags_{name}.jsonl", rows)


def data_changes(folder: Path, tags: Tags | None) -> dict[str, Any]:
    """Return the changes of a training config that read these files, with these tags."""
    changes: dict[str, Any] = {f"data.{split}": folder / f"{split}.jsonl" for split in SPLITS}
    changes |= {"data.classes": folder / "classes.txt", "data.words": None}
    if tags is not None:
        changes["data.words"] = folder / f"tags_{tags}.jsonl"
        changes["data.words_are"] = "oracle" if tags == "true" else "predicted"
    return changes


def tagged_classes(folder: Path, tags: Tags, ids: Sequence[str]) -> Bool[Tensor, "frames classes"]:
    """Return which classes are tags of which frames; all of a frame without tags."""
    lines = (folder / f"tags_{tags}.jsonl").read_text(encoding="utf-8").splitlines()
    found = {row["id"]: row["tags"] for row in map(json.loads, lines)}
    shown = torch.zeros(len(ids), len(CLASSES), dtype=torch.bool)
    for row, name in enumerate(ids):
        shown[row, [CLASSES.index(word) for word in found[name]]] = True
    return shown | ~shown.any(1, keepdim=True)


def precision_recall(
    found: Bool[Tensor, "frames classes"], true: Bool[Tensor, "frames classes"]
) -> dict[str, float]:
    """Return precision and recall over all tags of all frames."""
    right = float((found & true).sum())
    return {
        "precision": right / max(1.0, float(found.sum())),
        "recall": right / max(1.0, float(true.sum())),
    }


def _frames(root: Path, split: str) -> list[dict[str, str]]:
    """Return ids and files of a split, in the order of the frame numbers."""
    listed = root / f"{split}.txt"
    if not listed.is_file():
        raise InputError(
            f"{listed}: there is no such list of frames; expected NYUv2: a folder with rgb, depth, "
            "label, train.txt and test.txt"
        )
    rows = []
    for name in sorted(line.strip() for _, line in numbered_lines(listed)):
        files = {"image": "rgb", "depth": "depth", "label": "label"}
        row = {"id": name}
        for key, folder in files.items():
            found = sorted((root / folder).glob(f"{name}.*"))
            if not found:
                raise InputError(f"{root / folder}: there is no file of frame {name}")
            row[key] = str(found[0].resolve())
        rows.append(row)
    return rows


def _shown(frames: Sequence[Mapping[str, str]]) -> Bool[Tensor, "frames classes"]:
    """Return which classes each frame shows."""
    rows = []
    for frame in frames:
        with Image.open(frame["label"]) as image:
            labels = np.array(image)
        counts = np.bincount(labels.ravel(), minlength=len(CLASSES) + 1)[1 : len(CLASSES) + 1]
        rows.append(torch.from_numpy(counts >= max(1.0, _LEAST * labels.size)))
    return torch.stack(rows)


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))
