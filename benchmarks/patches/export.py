"""What a vector database loses against the second stage, with the shipped model on scenes.

    python -m benchmarks.patches.export
    python -m benchmarks.patches.export --scenes 50 --queries 5

Indexes scenes of the test split and exports them. A caption of every scene is then searched
exhaustively, in two stages (R = 128), and by MaxSim in LanceDB and in the local mode of Qdrant,
both without an approximate index. Compared are the share of the exhaustive top 10 among the first
10 and among the first 128 of a database, and how often the caption's own scene is among the first
10.

Writes results/export.json.
"""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any

import torch
import tyro

from benchmarks.timing import write_results
from eligo.patches.index import ScenePictures, Searcher, build_index
from eligo.patches.index.export import Engine, Query, export_index, query_vectors
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.report.intervals import paired_bootstrap
from eligo.scenes import SceneConfig, draw_captions, draw_scenes

RESULTS = Path(__file__).parent / "results" / "export.json"
TOP, RERANK = 10, 128

Find = Callable[[str], list[str]]
"""Ids that are found for a text, best first."""


def captions(count: int) -> list[str]:
    """Return a caption of each of the first test scenes."""
    drawn = draw_captions(draw_scenes(SceneConfig(), "test", range(count)), 1)
    return [drawn.text(scene, 0) for scene in range(count)]


def lancedb_search(folder: Path) -> Callable[[Query], list[str]]:
    import lancedb

    table = lancedb.connect(folder).open_table("images")

    def find(query: Query) -> list[str]:
        assert query.vectors is not None
        search: Any = table.search(query.vectors.numpy(), vector_column_name="vectors")
        return [row["id"] for row in search.distance_type("cosine").limit(RERANK).to_list()]

    return find


def qdrant_search(folder: Path) -> Callable[[Query], list[str]]:
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(folder))

    def find(query: Query) -> list[str]:
        assert query.vectors is not None
        asked = query.vectors.tolist()
        found = client.query_points("images", query=asked, using="vectors", limit=RERANK)
        return [(point.payload or {})["id"] for point in found.points]

    return find


def measure(model: RetrievalModel, scenes: int, queries: int, folder: Path) -> dict[str, Any]:
    """Index, export and search."""
    source = ScenePictures.first(scenes, model.image_encoder.image_size, dense=model.uses_dense)
    build_index(lambda: model, source, folder / "index")
    searcher = Searcher(model, folder / "index")
    searches: dict[str, Find] = {}

    def own(rerank: int | None) -> Find:
        def find(text: str) -> list[str]:
            hits = searcher.search(model.text_side([text]), k=TOP, rerank=rerank)
            return [entry["id"] for entry in searcher.ids(hits)]

        return find

    searches["exhaustive"], searches["two stages"] = own(None), own(RERANK)
    databases: dict[Engine, Any] = {"lancedb": lancedb_search, "qdrant": qdrant_search}
    for name, open_database in databases.items():
        export_index(folder / "index", name, out=folder / name)
        find = open_database(folder / name)
        searches[name] = lambda text, find=find: find(query_vectors(model, text))
    texts = captions(scenes)[:queries]
    found: dict[str, list[list[str]]] = {}
    results: dict[str, Any] = {"scenes": scenes, "queries": len(texts)}
    for name, find in searches.items():
        seconds = []
        found[name] = []
        for text in texts:
            started = perf_counter()
            found[name].append(find(text))
            seconds.append(perf_counter() - started)
        pairs = list(zip(found[name], found["exhaustive"], strict=True))
        hits = [own in each[:TOP] for own, each in zip(source.ids, found[name], strict=False)]
        results[name] = {
            "median_seconds": median(seconds),
            "own_scene_in_first_10": paired_bootstrap([[float(hit) for hit in hits]]),
            **{
                f"exhaustive_top10_in_first_{first}": paired_bootstrap(
                    [[len(set(best) & set(each[:first])) / len(best) for each, best in pairs]]
                )
                for first in (TOP, RERANK)
            },
        }
        print(name, json.dumps(results[name]))
    return results


def main(
    scenes: Annotated[int, tyro.conf.arg(help="Scenes to index.")] = 1_000,
    queries: Annotated[int, tyro.conf.arg(help="Captions to search for.")] = 200,
    threads: Annotated[int, tyro.conf.arg(help="Threads of torch.")] = 1,
    out: Annotated[Path, tyro.conf.arg(help="The file of results.")] = RESULTS,
) -> None:
    """Measure and record."""
    torch.set_num_threads(threads)
    with TemporaryDirectory() as folder:
        model = RetrievalModel.from_pretrained("patches")
        results = measure(model, scenes, queries, Path(folder))
    write_results(out, results)


if __name__ == "__main__":
    tyro.cli(main)
