"""Real texts in any number, and a tower that learned from them: what an index is measured on.

Dense captions of generated scenes, embedded by their words. For more vectors than texts the
embeddings are perturbed, each by as much as half of them are away from their nearest other text:
copies fill the room between texts instead of crowding around them, which would flatter an index.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from eligo.scenes import SceneConfig, draw_scenes
from eligo.scenes.dataset import scene_texts
from eligo.scenes.graph import Split
from eligo.shots.config import FitConfig, PointerSelectorV1Config
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.data.text import embed_texts
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.teacher.overlap import bigram_f1
from eligo.shots.training.task import fit_pointer

_SCENES = 512  # drawn at a time
_PICKS = 3


def captions(split: Split, count: int, start: int = 0) -> list[str]:
    """What the scenes of a split show, every object of them."""
    found: list[str] = []
    for first in range(start, start + count, _SCENES):
        wanted = range(first, min(first + _SCENES, start + count))
        graph = draw_scenes(SceneConfig(), split, wanted)
        found += [scene.dense_caption for scene in scene_texts(graph, 0, 1)]
    return found


def trained_tower(texts: list[str], vectors: Tensor, num_records: int) -> PointerSelector:
    """V1, fitted on which of 32 captions share most pairs of words with another one."""
    pool = Pool([str(row) for row in range(len(texts))], vectors, payload=texts)
    config = PointerSelectorV1Config(d_model=vectors.shape[1])
    generator = torch.Generator().manual_seed(0)
    records = []
    for number, text in enumerate(captions("validation", num_records)):
        drawn = torch.randperm(len(texts), generator=generator)[: config.K].tolist()
        worth = {row: bigram_f1(text, texts[row]) for row in drawn}
        best = sorted(drawn, key=lambda row, worth=worth: -worth[row])[:_PICKS]
        query = Query(f"q{number}", embed_texts([text], vectors.shape[1])[0])
        records.append(Record(query, [str(row) for row in best], [str(row) for row in drawn]))
    return fit_pointer(config, records, pool, FitConfig(min_steps=300, num_epochs=5))


def nearest_distance(vectors: Float[Tensor, "texts dim"], sample: int = 1000) -> float:
    """The median distance of a text to its nearest other."""
    cosines = vectors[:sample] @ vectors.T
    cosines[torch.arange(min(sample, len(vectors))), torch.arange(min(sample, len(vectors)))] = -1
    return float((2 - 2 * cosines.amax(1)).clamp_min(0).sqrt().median())


def perturbed(
    vectors: Float[Tensor, "texts dim"], count: int, distance: float, chunk: int = 32_768
) -> Iterator[Float[Tensor, "some dim"]]:
    """`count` unit vectors, chunk by chunk: the texts over and over, each time moved by noise."""
    generator = torch.Generator().manual_seed(1)
    for start in range(0, count, chunk):
        rows = torch.arange(start, min(start + chunk, count)) % len(vectors)
        noise = torch.randn(len(rows), vectors.shape[1], generator=generator)
        yield F.normalize(vectors[rows] + distance * F.normalize(noise, dim=-1), dim=-1)
