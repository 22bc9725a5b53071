"""Search a million photos: recall and time of FAISS, and of a whole index of 100,000.

    python -m benchmarks.patches.scale PHOTOS.index --model MODEL --queries captions.txt
    python -m benchmarks.patches.scale PHOTOS.index --model MODEL --queries captions.txt \\
        --vectors 20000 --entries 2000

Nobody gives us a million photos, so that those of an index are multiplied. A new photo is an old
one plus a multiple of the difference of two others: such noise has the directions in which photos
differ, unlike Gaussian noise, which is easier to search. The multiple makes it as similar to the
old one as a photo is to its nearest neighbour (median cosine).

`vectors`: that many first-stage vectors are searched by FAISS as `eligo patches search
--approximate` does, for the texts and for photos; the exhaustive top 10 are those of all products
in float32. `entries`: a whole index of that many photos, with all patches, is written and searched
with an exact first stage and with FAISS.

Writes results/scale.json.
"""

import json
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import tyro
from jaxtyping import Float
from torch import Tensor

from benchmarks.timing import timed, write_results
from eligo.patches.index import IndexFolder, Searcher, TextLines, stage1, store
from eligo.patches.index.entries import pack_images
from eligo.patches.model.functional import unit
from eligo.patches.model.inputs import Images
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.retrieval_model import RetrievalModel

RESULTS = Path(__file__).parent / "results" / "scale.json"
TOP, RERANK, SHARD, BLOCK = 10, 128, 512, 50_000
READ = (64, 32, 16, 8, 4, 2)  # one in so many lists is read


def amount_of_noise(photos: Float[Tensor, "photos dim"]) -> tuple[float, float]:
    """Return the multiple of a difference to add, and the median cosine of nearest neighbours."""
    near = photos @ photos.T
    near.fill_diagonal_(-1)
    goal = float(near.amax(1).median())
    random = torch.Generator().manual_seed(0)
    one, other = (torch.randperm(len(photos), generator=random) for _ in range(2))
    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        moved = unit(photos + middle * (photos[one] - photos[other]))
        cosine = float((moved * photos).sum(1).median())
        low, high = (middle, high) if cosine > goal else (low, middle)
    return low, goal


def draw(count: int, num_photos: int, seed: int) -> Tensor:
    """Return the photo, and the two whose difference is added, of each new one: (3, count)."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(num_photos, (3, count), generator=random)


def multiplied(
    photos: Float[Tensor, "photos dim"], count: int, noise: float
) -> Float[Tensor, "count dim"]:
    """Return that many unit vectors, of different photos."""
    vectors = torch.empty(count, photos.shape[1])
    for start in range(0, count, BLOCK):
        old, one, other = draw(min(BLOCK, count - start), len(photos), start)
        new = photos[old] + noise * (photos[one] - photos[other])
        vectors[start : start + len(new)] = unit(new)
    return vectors


def times(work: Any, queries: Any) -> tuple[dict[str, float], list[Any]]:
    """Return the seconds of a search and the results, one query after the other."""
    done = [timed(partial(work, query)) for query in queries]
    seconds = [each for each, _ in done]
    worst = quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0]
    return {"median_seconds": median(seconds), "p90_seconds": worst}, [hit for _, hit in done]


def share(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the share of the expected rows that was found."""
    return float(
        torch.stack(
            [torch.isin(e, f).double().mean() for f, e in zip(found, expected, strict=True)]
        ).mean()
    )


def measure_vectors(
    photos: Float[Tensor, "photos dim"], texts: Float[Tensor, "texts dim"], count: int, noise: float
) -> dict[str, Any]:
    """Build the lists of FAISS for `count` vectors, and search them."""
    vectors = multiplied(photos, count, noise)

    def build() -> Any:
        sample = torch.linspace(0, count - 1, count).long()
        lists = stage1.make_lists(
            vectors.shape[1], count, lambda size: vectors[sample[:: max(1, count // size)][:size]]
        )
        for start in range(0, count, BLOCK):
            block = vectors[start : start + BLOCK]
            ids = torch.arange(start, start + len(block))
            lists.add_with_ids(block.numpy(), ids.numpy())
        return lists

    seconds, lists = timed(build)
    results: dict[str, Any] = {
        "vectors": count, "width": vectors.shape[1], "lists": lists.nlist, "build_seconds": seconds,
        "bytes_each": 2 * vectors.shape[1] + 8,
    }  # fmt: skip
    print(json.dumps(results))
    default = lists.nprobe
    others = multiplied(photos, len(texts), noise)  # photos that are not among the vectors
    for name, queries in (("texts", texts), ("photos", others)):
        exact, expected = times(lambda q: (vectors @ q).topk(TOP).indices, queries)
        results[name] = {"queries": len(queries), "exhaustive": exact, "faiss": []}
        for read in READ:
            lists.nprobe = -(-lists.nlist // read)
            took, found = times(
                lambda q: torch.from_numpy(lists.search(q[None].numpy(), TOP)[1][0]), queries
            )
            row = {"lists_read": lists.nprobe, "recall_of_top10": share(found, expected), **took}
            results[name]["faiss"].append(row | {"is_default": lists.nprobe == default})
            print(name, json.dumps(row))
    return results


def write_index(searcher: Searcher, folder: Path, count: int, noise: float) -> None:
    """Write an index of multiplied photos with all their patches."""
    net, old = searcher.net, searcher.index
    assert isinstance(net, LateInteraction)
    manifest = store.Manifest("images", old.manifest.model, "float16", {"copies of": "photos"})
    store.write_manifest(folder, manifest)
    shards = []
    for number, start in enumerate(range(0, count, SHARD)):
        rows = draw(min(SHARD, count - start), len(old), start)
        parts = []
        for which in rows:
            order = which.sort()
            picked = old.gather(
                old.rows[order.values],
                lambda tensors, inside: {n: tensors[n][inside].float() for n in ("patches", "cls")},
            )
            back = order.indices.argsort()
            parts.append({n: torch.cat([p[n] for p in picked])[back] for n in picked[0]})
        new = {n: parts[0][n] + noise * (parts[1][n] - parts[2][n]) for n in parts[0]}
        tensors = pack_images(net, Images(new["patches"], new["cls"]))
        lines = [{"id": f"{start + n}", "stamp": "", "content": ""} for n in range(rows.shape[1])]
        path = store.shard_path(folder, number)
        store.write_shard(path, manifest.model, tensors, lines, [])
        shards.append((store.Shard(path), lines))
    store.finish(folder, manifest, shards, [])


def measure_index(
    model: RetrievalModel, photos: Searcher, texts: list[str], count: int, noise: float, out: Path
) -> dict[str, Any]:
    """Write and search a whole index; the exact first stage is that of all vectors."""
    written, _ = timed(partial(write_index, photos, out, count, noise))
    opened, exact = timed(partial(Searcher, model, out))
    built, near = timed(partial(Searcher, model, out, approximate=True))
    sides = [model.text_side([text]) for text in texts]
    results: dict[str, Any] = {
        "entries": len(exact.index),
        "gib": sum(path.stat().st_size for path in out.iterdir()) / 2**30,
        "write_seconds": written,
        "open_seconds": opened,
        "build_faiss_seconds": built,
        "queries": len(texts),
        "rerank": RERANK,
    }
    print(json.dumps(results))
    found = {}
    for name, searcher in (("exact", exact), ("faiss", near)):
        search = partial(searcher.search, k=TOP, rerank=RERANK)
        results[f"{name}_first"], _ = times(search, sides[:1])
        results[name], hits = times(search, sides)
        found[name] = [hit.rows for hit in hits]
    results["top10_of_exact_first_stage_found"] = share(found["faiss"], found["exact"])
    return results


def main(
    index: Annotated[Path, tyro.conf.Positional],
    model: str,
    queries: Annotated[Path, tyro.conf.arg(help="A file of texts, one per line.")],
    vectors: Annotated[int, tyro.conf.arg(help="First-stage vectors.")] = 1_000_000,
    entries: Annotated[int, tyro.conf.arg(help="Photos of the whole index.")] = 100_000,
    num_queries: Annotated[int, tyro.conf.arg(help="Texts to search for.")] = 100,
    threads: Annotated[int, tyro.conf.arg(help="Threads of torch and FAISS.")] = 2,
    out: Annotated[Path, tyro.conf.arg(help="The file of results.")] = RESULTS,
) -> None:
    """Measure and record."""
    import faiss

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    opened = RetrievalModel.from_pretrained(model)
    photos = Searcher(opened, IndexFolder(index))
    texts = list(TextLines.of(queries).texts)[:num_queries]
    stored = torch.cat(
        photos.index.gather(photos.index.rows, lambda tensors, rows: tensors["direction"][rows])
    )
    base = unit(stored.float())
    noise, cosine = amount_of_noise(base)
    directions = [photos.stage1_queries(opened.text_side([text]))[0].direction for text in texts]
    results: dict[str, Any] = {
        "photos": len(base),
        "threads": threads,
        "cosine_to_nearest_photo": cosine,
        "noise": noise,
        "vectors": measure_vectors(base, torch.stack(directions).float(), vectors, noise),
    }
    with TemporaryDirectory(dir=index.parent) as folder:
        results["index"] = measure_index(opened, photos, texts, entries, noise, Path(folder))
    print(json.dumps(results["index"]))
    write_results(out, results)


if __name__ == "__main__":
    tyro.cli(main)
