"""Dense texts from captions: an image's text is its other captions, never the query.

A query is scored with the texts of all images without their caption of the query's number, so that
true and false pairs have texts of one kind.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.captions import CaptionedImage, Split, read_karpathy
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.patches.config import KarpathyDataConfig
from eligo.patches.data.cache import CachedCaptions
from eligo.patches.data.cached_source import CachedSet, CachedSource
from eligo.patches.inference.evaluate import score_set
from eligo.patches.metrics import retrieval_metrics
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.training.task import PatchesTask


def one_by_one(images: Sequence[CaptionedImage]) -> list[CaptionedImage]:
    """Return all images with their first caption, then all with their second, and so on.

    The dense text of an image is its other captions.

    >>> from pathlib import Path
    >>> image = CaptionedImage(0, Path("1.jpg"), ("a dog", "a pet.", "it runs ."), ())
    >>> [(i.captions, i.dense) for i in one_by_one([image])][0]
    (('a dog',), 'a pet. it runs')
    """
    counts = {len(image.captions) for image in images}
    if len(counts) != 1 or counts == {1}:
        raise InputError(
            f"captions: got images with {sorted(counts)} captions, expected equally many, at least "
            "two: the others are the text of the image"
        )
    return [
        replace(image, captions=(image.captions[number],), dense=_without(image.captions, number))
        for number in range(counts.pop())
        for image in images
    ]


def _without(captions: Sequence[str], number: int) -> str:
    return ". ".join(text.rstrip(" .") for n, text in enumerate(captions) if n != number)


def write_joined(captions: Path, path: Path) -> Path:
    """Write all captions of every image as its dense caption; `one_by_one` takes the others."""
    images = [image for part in read_karpathy(captions, Path()).values() for image in part]
    rows = [
        {"image_id": image.path.name, "text": _without(image.captions, -1)}
        for image in sorted(images, key=lambda image: image.index)
    ]
    return write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def score_one_by_one(
    model: RetrievalModel, stored: CachedCaptions
) -> tuple[Float[Tensor, "images texts"], Bool[Tensor, "images texts"]]:
    """Return scores and true pairs of what `one_by_one` gives, captions image by image."""
    size = len({image.index for image in stored.given})
    parts = [
        score_set(model, CachedSet(stored[start : start + size], model))
        for start in range(0, len(stored.given), size)
    ]
    positive = torch.eye(size, dtype=torch.bool, device=parts[0].device)
    return torch.stack(parts, -1).flatten(1), positive.repeat_interleave(len(parts), 1)


class OtherCaptionsSource(CachedSource):
    """Images with one caption each, and the others as dense text."""

    def read(self, split: Split) -> list[CaptionedImage]:
        """Return the images of a split, once for each caption."""
        return one_by_one(super().read(split))

    @property
    def held_out(self) -> CachedCaptions:
        """The validation split."""
        return self._splits[1]


class OtherCaptionsTask(PatchesTask):
    """Trains with the other captions of an image as its dense text."""

    def open_source(self) -> OtherCaptionsSource:
        """Open the stored features."""
        assert isinstance(self.config.data, KarpathyDataConfig)
        return OtherCaptionsSource(self.config.data, self.model, dense=True)

    def metric_names(self) -> list[str]:
        """Return the names of the metrics that `evaluate` returns."""
        return [name for name in super().metric_names() if name != "loss"]

    def evaluate(self) -> Mapping[str, float]:
        """Return recalls and ranks on the validation split."""
        assert isinstance(self.source, OtherCaptionsSource)
        scores, positive = score_one_by_one(self.model, self.source.held_out)
        return retrieval_metrics(scores, positive).as_dict()
