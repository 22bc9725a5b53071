"""Batches of images, and the interface of their sources."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from eligo.pixels.data.records import Split
from eligo.pixels.text.batch import Provenance, TextBatch
from eligo.train.task import Source


@dataclass(frozen=True, eq=False)
class Batch:
    """Images of one size, as network inputs."""

    rgb: Float[Tensor, "batch 3 height width"]
    labels: UInt8[Tensor, "batch height width"]
    """Classes from 0; 255 is ignored."""
    depth: Float[Tensor, "batch 1 height width"] | None = None
    depth_mask: Bool[Tensor, "batch 1 height width"] | None = None
    """Where depth is known; all False is the same as no depth."""
    text: TextBatch | None = None


class ImageSource(Source):
    """Endless training batches, and the images of a split once each."""

    classes: tuple[str, ...]

    def augmented(self, batch: Batch) -> Batch:
        """Augment the batch of a step, with torch's generator, which is seeded for the step."""
        return batch

    @abstractmethod
    def images(self, split: Split, provenance: Provenance, batch_size: int) -> Iterator[Batch]:
        """Yield every image of a split once, with words of that provenance."""

    @property
    @abstractmethod
    def provenances(self) -> tuple[Provenance, ...]:
        """Available provenances of words; the first one is the main result."""
