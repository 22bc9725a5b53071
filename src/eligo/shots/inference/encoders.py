"""Vectors of questions, answers and images: `words` (no model), or a model of `transformers`."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from eligo.errors import InputError
from eligo.pretrained.devices import resolve_device
from eligo.pretrained.encoders import load_encoder
from eligo.shots.data.text import embed_texts

WORDS = "words"
GIVEN = "vectors"
"""Stands for an encoder where vectors came from a file."""


@runtime_checkable
class Encoder(Protocol):
    """Vectors of texts, and of images if the encoder reads them."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """A vector for each text."""
        ...

    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """A vector for each image file."""
        ...


class WordsEncoder:
    """Counts words: no model, no images."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """A vector for each text."""
        return embed_texts(texts)

    def images(self, paths: Sequence[str]) -> Float[Tensor, "images dim"]:
        """Raise: this encoder does not read images."""
        raise InputError(
            f"encoder {WORDS}: cannot embed {paths[0]}; give --encoder FOLDER of a CLIP or SigLIP "
            "model"
        )


def open_encoder(name: str, device: str = "auto") -> Encoder:
    """Load the encoder `words`, or a model by its folder or hub name.

    Models of sentence-transformers, other text models, CLIP and SigLIP.
    """
    if name == WORDS:
        return WordsEncoder()
    encoder = load_encoder("encoder", name)
    encoder.model.to(resolve_device(device))
    return encoder
