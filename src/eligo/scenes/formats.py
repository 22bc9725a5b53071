"""The file formats of exported scenes.

A format is two functions: the pictures of one scene, by path, and the text files about all of them.
Splits are named as in each format: `val` of Karpathy and NYU is our validation split. The test set
of VQAv2 has annotations too, unlike the original.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

import eligo
from eligo.scenes.config import SceneConfig
from eligo.scenes.dataset import SceneItem, SceneQuestion, SceneText
from eligo.scenes.graph import SPLITS, Split
from eligo.scenes.painter import label_names
from eligo.scenes.question_kinds import KIND_ID, KINDS

Encode = Callable[[SceneItem], bytes]
Texts = Mapping[Split, list[SceneText]]

DEPTH_SCALE = 1000
"""Units per metre of 16-bit depth."""
PNG8_METRES = 10.0
"""Depth in metres of the value 255 in 8-bit depth."""
_SHORT = {"train": "train", "validation": "val", "test": "test"}
_COCO = {"train": "train2014", "validation": "val2014", "test": "test2015"}
_PER_SPLIT = 1_000_000
_ANNOTATORS = 10
_ANSWER_TYPES = {"yes": "yes/no", "no": "yes/no", **{str(n): "number" for n in range(5)}}


@dataclass(frozen=True)
class Choices:
    """The options of an export within a format."""

    scenes: SceneConfig
    image: str
    """`jpg` or `png`."""
    depth: str
    """`metric` or `png8`."""


@dataclass(frozen=True)
class Format:
    """A file format."""

    pictures: Callable[[Choices, SceneText], dict[str, Encode]]
    """Path of each picture of a scene, and how to make it."""
    index: Callable[[Choices, Texts], Iterator[tuple[str, str]]]
    """Path and content of each text file."""
    has_questions: bool = False
    has_captions: bool = False


def image_id(text: SceneText) -> int:
    """Return the integer id of a scene in COCO-like files: unique across splits, from 1."""
    return SPLITS.index(text.split) * _PER_SPLIT + text.index + 1


# ------------------------------------------------------------------ pictures


def encode_rgb(kind: str) -> Encode:
    """Return an encoder of the image, as JPEG of high quality or as PNG."""

    def encode(item: SceneItem) -> bytes:
        image = Image.fromarray(np.ascontiguousarray(item.rgb.numpy().transpose(1, 2, 0)))
        if kind == "png":
            return _saved(image, "PNG")
        return _saved(image, "JPEG", quality=95, subsampling=0)

    return encode


def encode_label(item: SceneItem) -> bytes:
    """Encode classes as 1..K; 0 (pixels to ignore) does not occur."""
    return _saved(Image.fromarray(item.labels.numpy() + np.uint8(1)), "PNG")


def encode_depth(kind: str) -> Encode:
    """`metric`: 16 bits, millimetres, 0 where there is none. `png8`: 8 bits, 255 is ten metres."""

    def encode(item: SceneItem) -> bytes:
        if kind == "metric":
            return _saved(Image.fromarray(_millimetres(item)), "PNG")
        share = np.minimum(item.depth.numpy(), PNG8_METRES) / PNG8_METRES
        return _saved(Image.fromarray((255 * share).round().astype(np.uint8)), "PNG")

    return encode


def encode_sun_depth(item: SceneItem) -> bytes:
    """Encode millimetres rotated left by three bits; a reader takes (v >> 3) | (v << 13)."""
    depth = _millimetres(item)
    return _saved(Image.fromarray((depth << np.uint16(3)) | (depth >> np.uint16(13))), "PNG")


def _millimetres(item: SceneItem) -> np.ndarray:
    depth = (item.depth.numpy() * DEPTH_SCALE).round().clip(0, 2**16 - 1)
    return np.where(item.depth_mask.numpy(), depth, 0).astype(np.uint16)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


# ------------------------------------------------------------------ VQAv2


def _vqa_pictures(choices: Choices, text: SceneText) -> dict[str, Encode]:
    folder = _COCO[text.split]
    name = f"COCO_{folder}_{image_id(text):012d}.{choices.image}"
    return {f"{folder}/{name}": encode_rgb(choices.image)}


def _vqa_index(_: Choices, texts: Texts) -> Iterator[tuple[str, str]]:
    for split, scenes in texts.items():
        folder = _COCO[split]
        head = {"info": _info(), "data_type": "mscoco", "data_subtype": folder}
        questions, annotations = [], []
        for text in scenes:
            image = image_id(text)
            for number, question in enumerate(text.questions):
                ids = {"image_id": image, "question_id": image * 1000 + number}
                questions.append({**ids, "question": question.question})
                annotations.append({**ids, **_annotation(question)})
        task = {"task_type": "Open-Ended", "questions": questions}
        yield f"v2_OpenEnded_mscoco_{folder}_questions.json", json.dumps({**head, **task})
        content = {**head, "annotations": annotations}
        yield f"v2_mscoco_{folder}_annotations.json", json.dumps(content)


def _annotation(question: SceneQuestion) -> dict[str, Any]:
    kind = KINDS[KIND_ID[question.kind]]
    opening = kind.text.split(" A")[0]  # the words before the first phrase: "what size is the"
    answers = [
        {"answer": question.answer, "answer_confidence": "yes", "answer_id": number + 1}
        for number in range(_ANNOTATORS)
    ]
    return {
        "question_type": opening,
        "answer_type": _ANSWER_TYPES.get(question.answer, "other"),
        "multiple_choice_answer": question.answer,
        "answers": answers,
    }


def _info() -> dict[str, str]:
    return {
        "description": "procedural scenes, in the format of VQA v2.0",
        "version": eligo.__version__,
        "contributor": "eligo.scenes",
    }


# ------------------------------------------------------------------ Karpathy-split captions


def _captions_pictures(choices: Choices, text: SceneText) -> dict[str, Encode]:
    return {f"images/{text.id}.{choices.image}": encode_rgb(choices.image)}


def _captions_index(choices: Choices, texts: Texts) -> Iterator[tuple[str, str]]:
    images, dense, sentence_id = [], [], 0
    for split, scenes in texts.items():
        for text in scenes:
            image = len(images)
            ids = list(range(sentence_id, sentence_id + len(text.captions)))
            sentence_id += len(ids)
            sentences = [
                {"raw": raw, "tokens": _tokens(raw), "imgid": image, "sentid": number}
                for number, raw in zip(ids, text.captions, strict=True)
            ]
            entry = {"filename": f"{text.id}.{choices.image}", "imgid": image}
            entry |= {"split": _SHORT[split], "sentids": ids, "sentences": sentences}
            images.append(entry)
            author = {"model": f"eligo.scenes {eligo.__version__}", "prompt": ""}
            dense.append({"image_id": image, "text": text.dense_caption, **author})
    yield "dataset_scenes.json", json.dumps({"images": images, "dataset": "scenes"})
    yield "dense_captions.jsonl", json_lines(dense)


def _tokens(raw: str) -> list[str]:
    """Lower-case words without punctuation, as in Karpathy's files."""
    return raw.lower().replace(",", "").replace(".", "").split()


# ------------------------------------------------------------------ NYUDepthv2, SUN RGB-D


def _nyu_pictures(choices: Choices, text: SceneText) -> dict[str, Encode]:
    return _room_pictures(choices, text, "Label", encode_depth(choices.depth))


def _sun_pictures(choices: Choices, text: SceneText) -> dict[str, Encode]:
    return _room_pictures(choices, text, "labels", encode_sun_depth)


def _room_pictures(
    choices: Choices, text: SceneText, folder: str, depth: Encode
) -> dict[str, Encode]:
    return {
        f"RGB/{text.id}.{choices.image}": encode_rgb(choices.image),
        f"Depth/{text.id}.png": depth,
        f"{folder}/{text.id}.png": encode_label,
    }


def _nyu_index(choices: Choices, texts: Texts) -> Iterator[tuple[str, str]]:
    return _room_index(choices, texts, "Label")


def _sun_index(choices: Choices, texts: Texts) -> Iterator[tuple[str, str]]:
    return _room_index(choices, texts, "labels")


def _room_index(choices: Choices, texts: Texts, folder: str) -> Iterator[tuple[str, str]]:
    for split, scenes in texts.items():
        lines = [f"RGB/{t.id}.{choices.image} {folder}/{t.id}.png\n" for t in scenes]
        yield f"{_SHORT[split]}.txt", "".join(lines)
    yield "classes.txt", _classes(choices)
    tags = [{"id": t.id, "tags": list(t.tags)} for scenes in texts.values() for t in scenes]
    yield "tags.jsonl", json_lines(tags)


def _classes(choices: Choices) -> str:
    return "".join(f"{name}\n" for name in label_names(choices.scenes))


# ------------------------------------------------------------------ plain JSON lines


def _jsonl_pictures(choices: Choices, text: SceneText) -> dict[str, Encode]:
    paths = _jsonl_paths(choices, text)
    makers = (encode_rgb(choices.image), encode_depth(choices.depth), encode_label)
    return dict(zip(paths.values(), makers, strict=True))


def _jsonl_paths(choices: Choices, text: SceneText) -> dict[str, str]:
    return {
        "image": f"images/{text.id}.{choices.image}",
        "depth": f"depth/{text.id}.png",
        "label": f"labels/{text.id}.png",
    }


def _jsonl_index(choices: Choices, texts: Texts) -> Iterator[tuple[str, str]]:
    for split, scenes in texts.items():
        rows, questions = [], []
        for text in scenes:
            paths = _jsonl_paths(choices, text)
            captions = {"captions": list(text.captions), "dense_caption": text.dense_caption}
            rows.append({"id": text.id, **paths, "tags": list(text.tags), **captions})
            for number, question in enumerate(text.questions):
                questions.append(
                    {
                        "id": f"{text.id}_{number}",
                        "image": paths["image"],
                        "question": question.question,
                        "answers": [question.answer],
                        "kind": question.kind,
                    }
                )
        yield f"{split}.jsonl", json_lines(rows)
        yield f"{split}_questions.jsonl", json_lines(questions)
    yield "classes.txt", _classes(choices)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """One JSON document per line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


FORMATS = {
    "vqa": Format(_vqa_pictures, _vqa_index, has_questions=True),
    "captions": Format(_captions_pictures, _captions_index, has_captions=True),
    "nyu": Format(_nyu_pictures, _nyu_index),
    "sun": Format(_sun_pictures, _sun_index),
    "jsonl": Format(_jsonl_pictures, _jsonl_index, has_questions=True, has_captions=True),
}
