"""Speed of one query against a million candidates on a CPU.

The candidates are dense captions of generated scenes, embedded by their words and projected by a
trained tower. For more vectors than texts, embeddings are perturbed by the median distance to the
nearest other text: copies that cluster around their text would flatter an index.
"""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.scenes import SceneConfig, draw_scenes
from eligo.scenes.dataset import SceneText, scene_texts
from eligo.scenes.graph import Split
from eligo.shots.config import FitConfig, PointerSelectorV1Config
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.data.text import embed_texts
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.index import PoolIndex
from eligo.shots.pool.pool import Pool
from eligo.shots.teacher.overlap import bigram_f1
from eligo.shots.training.task import fit_pointer

DIM, TOP = 768, 64
_SCENES = 512  # drawn at a time
_PICKS = 3
_WARMUP = 20  # queries


@torch.no_grad()
def bench_index(
    num_candidates: int = 1_000_000,
    num_texts: int = 20_000,
    num_queries: int = 400,
    num_records: int = 2000,
    recall: float = 0.988,
) -> dict[str, Any]:
    """Latency of a search (tower and index), recall@64 against float32, build time, memory.

    Half of the queries, unseen texts, calibrate the index; the other half measure it.
    """
    import psutil  # comes with accelerate

    if num_candidates < num_texts:
        raise InputError(f"got {num_candidates} candidates for {num_texts} texts, expected more")
    texts = dense_captions("train", num_texts)
    real = embed_texts(texts, DIM)
    with torch.enable_grad():
        tower: Any = trained_tower(texts, real, num_records)
    distance = nearest_distance(real)
    vectors = torch.empty(num_candidates, tower.config.hidden_dim)
    filled = 0
    for part in perturbed(real, num_candidates, distance):
        vectors[filled : filled + len(part)] = tower.candidate_tower(part)
        filled += len(part)
    queries = embed_texts(dense_captions("test", num_queries), DIM)
    calibration, measured = tower.query_tower(queries).chunk(2)

    memory = psutil.Process().memory_info
    before, start = memory().rss, time.perf_counter()
    index = PoolIndex.build(vectors, approximate=True)
    seconds = time.perf_counter() - start
    growth = memory().rss - before
    promised = index.calibrate(calibration, TOP, recall)

    truth = _exact(vectors, measured)
    slots = torch.cat([index.search(query[None], TOP).slots for query in measured])
    hits = sum(len(set(a) & set(b)) for a, b in zip(slots.tolist(), truth.tolist(), strict=True))
    unseen = queries[len(calibration) :]
    times = [
        _milliseconds(lambda query=query: index.search(tower.query_tower(query[None]), TOP))
        for query in [*unseen[:_WARMUP], *unseen]
    ][len(unseen[:_WARMUP]) :]
    exact = [_milliseconds(lambda: _exact(vectors, measured[:1])) for _ in range(5)]
    faiss_index: Any = index.store.index  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "candidates": num_candidates,
        "texts": num_texts,
        "perturbed_by": distance,
        "width": vectors.shape[1],
        "queries": len(measured),
        "recall_at_64": hits / truth.numel(),
        "recall_promised": promised,
        "lists": int(faiss_index.nlist),
        "lists_looked_at": int(faiss_index.nprobe),
        "p50_ms": float(torch.tensor(times).quantile(0.5)),
        "p99_ms": float(torch.tensor(times).quantile(0.99)),
        "exact_p50_ms": median(exact),
        "index_gb": index.num_bytes / 1e9,
        "resident_growth_gb": growth / 1e9,
        "build_seconds": seconds,
    }


def set_threads(count: int) -> None:
    """Set the number of threads of FAISS, if it is installed."""
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(count)


def _exact(
    vectors: Float[Tensor, "candidates dim"], queries: Float[Tensor, "queries dim"]
) -> Int[Tensor, "queries top"]:
    """Exact search in float32, independent of the index."""
    return torch.cat([(vectors @ query).topk(TOP).indices[None] for query in queries])


def _milliseconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - start)


def scene_captions(split: Split, count: int, start: int = 0) -> list[SceneText]:
    """Texts of the scenes of a split."""
    captions: list[SceneText] = []
    for first in range(start, start + count, _SCENES):
        numbers = range(first, min(first + _SCENES, start + count))
        captions += scene_texts(draw_scenes(SceneConfig(), split, numbers), 0, 1)
    return captions


def dense_captions(split: Split, count: int, start: int = 0) -> list[str]:
    """Captions that name every object."""
    return [scene.dense_caption for scene in scene_captions(split, count, start)]


def trained_tower(texts: list[str], vectors: Tensor, num_records: int) -> PointerSelector:
    """Fit V1 to find those of 32 captions that share most word bigrams with another one."""
    pool = Pool([str(row) for row in range(len(texts))], vectors, payload=texts)
    config = PointerSelectorV1Config(d_model=vectors.shape[1], residual=False)
    generator = torch.Generator().manual_seed(0)
    records = []
    for number, text in enumerate(dense_captions("validation", num_records)):
        drawn = torch.randperm(len(texts), generator=generator)[: config.K].tolist()
        overlap = {row: bigram_f1(text, texts[row]) for row in drawn}
        best = sorted(drawn, key=lambda row, overlap=overlap: -overlap[row])[:_PICKS]
        query = Query(f"q{number}", embed_texts([text], vectors.shape[1])[0])
        records.append(Record(query, [str(row) for row in best], [str(row) for row in drawn]))
    return fit_pointer(config, records, pool, FitConfig(min_steps=300, num_epochs=5))


def nearest_distance(vectors: Float[Tensor, "texts dim"], sample: int = 1000) -> float:
    """Median distance of a text to its nearest other."""
    cosines = (vectors[:sample] @ vectors.T).fill_diagonal_(-1)
    return float((2 - 2 * cosines.amax(1)).clamp_min(0).sqrt().median())


def perturbed(
    vectors: Float[Tensor, "texts dim"], count: int, distance: float, chunk: int = 32_768
) -> Iterator[Float[Tensor, "some dim"]]:
    """Yield `count` unit vectors in chunks: the texts repeatedly, each time with new noise."""
    generator = torch.Generator().manual_seed(1)
    for start in range(0, count, chunk):
        rows = torch.arange(start, min(start + chunk, count)) % len(vectors)
        noise = torch.randn(len(rows), vectors.shape[1], generator=generator)
        yield F.normalize(vectors[rows] + distance * F.normalize(noise, dim=-1), dim=-1)
