"""One query against a million candidates on a CPU. Section 8."""

import time
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.shots.texts import captions, nearest_distance, perturbed, trained_tower
from eligo.errors import InputError
from eligo.shots.data.text import embed_texts
from eligo.shots.pool.index import PoolIndex

DIM, TOP = 768, 64


@torch.no_grad()
def bench_index(
    num_candidates: int = 1_000_000,
    num_texts: int = 20_000,
    num_queries: int = 400,
    num_records: int = 2000,
    recall: float = 0.988,
) -> dict[str, Any]:
    """Latency of a search (tower and index), its recall@64 against float32, build time, memory.

    Half of the queries, texts that nothing else has seen, set how much the index looks at; the
    other half measure it.
    """
    if num_candidates < num_texts:
        raise InputError(f"got {num_candidates} candidates for {num_texts} texts, expected more")
    texts = captions("train", num_texts)
    real = embed_texts(texts, DIM)
    with torch.enable_grad():
        tower = trained_tower(texts, real, num_records)
    distance = nearest_distance(real)
    vectors = torch.empty(num_candidates, tower.config.hidden_dim)
    filled = 0
    for part in perturbed(real, num_candidates, distance):
        vectors[filled : filled + len(part)] = tower.candidate_tower(part)
        filled += len(part)
    asked = embed_texts(captions("test", num_queries), DIM)
    tuned, measured = tower.query_tower(asked).chunk(2)

    before, start = _resident(), time.perf_counter()
    index = PoolIndex.build(vectors, approximate=True)
    seconds = time.perf_counter() - start
    grown = _resident() - before
    promised = index.calibrate(tuned, TOP, recall)

    truth = _exact(vectors, measured)
    found = torch.cat([index.search(query[None], TOP).slots for query in measured])
    hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True))
    times = _latencies(index, tower, asked[len(tuned) :])
    exact_ms = _median_ms(lambda: _exact(vectors, measured[:1]), 5)
    return {
        "candidates": num_candidates,
        "texts": num_texts,
        "perturbed_by": distance,
        "width": vectors.shape[1],
        "queries": len(measured),
        "recall_at_64": hits / truth.numel(),
        "recall_promised": promised,
        "lists": int(index.store.index.nlist),  # pyright: ignore[reportAttributeAccessIssue]
        "lists_looked_at": int(index.store.index.nprobe),  # pyright: ignore[reportAttributeAccessIssue]
        **times,
        "exact_p50_ms": exact_ms,
        "index_gb": index.num_bytes / 1e9,
        "resident_growth_gb": grown / 1e9,
        "build_seconds": seconds,
    }


def _exact(
    vectors: Float[Tensor, "candidates dim"], queries: Float[Tensor, "queries dim"]
) -> Int[Tensor, "queries top"]:
    """A plain product and top-k in float32: shares nothing with the index."""
    return torch.cat([(vectors @ query).topk(TOP).indices[None] for query in queries])


def _latencies(index: PoolIndex, tower: Any, asked: Tensor) -> dict[str, float]:
    times = []
    for number, embedding in enumerate([*asked[:20], *asked]):  # the first warm up
        start = time.perf_counter()
        index.search(tower.query_tower(embedding[None]), TOP)
        if number >= 20:
            times.append(1000 * (time.perf_counter() - start))
    ordered = torch.tensor(times).sort().values
    p50, p99 = (float(ordered.quantile(share)) for share in (0.5, 0.99))
    return {"p50_ms": p50, "p99_ms": p99}


def _median_ms(run: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[rounds // 2]


def _resident() -> int:
    """Bytes of memory that the process holds."""
    import psutil  # comes with accelerate

    return psutil.Process().memory_info().rss
