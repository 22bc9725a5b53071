"""What a model was trained on, for everything that predicts with it."""

from typing import Any

from eligo.pixels.config import SegmenterConfig

_ORIGINS = {"predicted": "from a tagger or a person", "oracle": "from the labels"}


def as_trained(config: SegmenterConfig) -> dict[str, Any]:
    """Return image size, depth, words and the number of the first class in training."""
    inputs, words = config.inputs, config.text.source if config.guided else "none"
    is_generated = words != "none" and config.text.encoder.kind == "words"  # their vocabulary
    return {
        "images": "generated rooms" if is_generated else None,
        "image_size": config.image_size and list(config.image_size),
        "depth": inputs.depth,
        "depth_scale": inputs.depth_scale if inputs.depth == "metric" else None,
        "words": words,
        "words_are": config.words_are if words in ("tags", "captions", "both") else None,
        "label_offset": config.label_offset,
    }


def describe(trained: dict[str, Any]) -> str:
    """Return `as_trained` as a sentence.

    >>> describe(as_trained(SegmenterConfig(image_size=(240, 320), label_offset=1)))
    'trained on 240 x 320 pixels, depth metric with 1000 units per metre, words: tags; its label \
files count classes from 1, label.png from 0'
    """
    size, scale, first = trained["image_size"], trained["depth_scale"], trained["label_offset"]
    images = trained["images"]
    parts = [f"{size[0]} x {size[1]} pixels" if size else "images of several sizes"]
    parts[0] = f"{images} of {parts[0]}" if images else parts[0]
    parts.append(f"depth {trained['depth']}")
    parts[-1] += f" with {scale:g} units per metre" if scale else ""
    parts.append(f"words: {trained['words']}")
    if origin := _ORIGINS.get(trained["words_are"]):
        parts[-1] += f" {origin}"
    labels = "" if first is None else f"; its label files count classes from {first}"
    labels += ", label.png from 0" if first else ""
    photos = "; on photos its classes mean nothing" if images else ""
    return f"trained on {', '.join(parts)}{labels}{photos}"
