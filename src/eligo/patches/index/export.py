"""An index of images in the form of vector databases: LanceDB and Qdrant.

Each image has its id, `direction` (one vector) and, unless the model has one vector per image,
`vectors`, which these databases match by MaxSim: the sum over the words of a query of each word's
best cosine. These are the slots of stage 1 or, with late interaction, all patches. What they
cannot do is stage 2: select patches for the query and match in the other direction as well
(docs/patches_export.md has what that costs).
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eligo.errors import EligoError, InputError, MissingExtraError
from eligo.io.files import write_text, writing_folder
from eligo.io.reading import reason
from eligo.patches.index.entries import text_queries
from eligo.patches.index.store import IndexFolder
from eligo.patches.model.functional import unit
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.retrieval_model import RetrievalModel

Engine = Literal["lancedb", "qdrant"]
TABLE = "images"
"""The name of the table or collection."""
ABOUT = "eligo.json"
_HOLDS = (
    ABOUT, "images.lance/*", "images.lance/*/*", "images.lance/*/*/*",
    ".lock", "meta.json", "collection/images/*",
)  # fmt: skip
_BATCH = 64  # images at a time


@dataclass(frozen=True)
class Exported:
    """What was written; also the contents of eligo.json."""

    to: Engine
    table: str
    images: int
    width: int
    """Numbers of a vector."""
    vectors: int
    """Vectors of an image beside its direction; 0: the direction is all."""
    model: str
    """Hash of the model, whose queries fit."""


class Query(NamedTuple):
    """A text as these databases search for it."""

    direction: Float[Tensor, " dim"]
    vectors: Float[Tensor, "words dim"] | None
    """None: the direction is all."""


@torch.no_grad()
def query_vectors(model: RetrievalModel, text: str) -> Query:
    """Return a text as a query of an exported index.

    >>> query = query_vectors(RetrievalModel.tiny(kind="late").eval(), "a red ball.")
    >>> query.vectors.shape[1] == len(query.direction)
    True
    """
    net, texts = model.index_net(), model.text_side([text])
    first = text_queries(net, texts)[0]
    if isinstance(net, LateInteraction):
        return Query(first.direction, unit(texts.words.vectors[texts.words.mask]).cpu())
    return Query(first.direction, first.vectors)


def export_index(
    index: IndexFolder | str | Path,
    to: Engine,
    *,
    out: str | Path | None = None,
    url: str | None = None,
) -> Exported:
    """Write the vectors of an index of images to a new folder, or to the Qdrant server at `url`."""
    index = index if isinstance(index, IndexFolder) else IndexFolder(index)
    if index.manifest.kind != "images":
        raise InputError(f"{index.folder}: is an index of texts; expected an index of images")
    if (out is None) == (url is None) or (url is not None and to != "qdrant"):
        raise InputError("expected --out FOLDER or, for Qdrant, --url of a server")
    tensors = index.shards[0].tensors
    name = next((name for name in ("folded", "patches") if name in tensors), None)
    about = Exported(
        to,
        TABLE,
        len(index),
        tensors["direction"].shape[1],
        0 if name is None else tensors[name].shape[1],
        index.manifest.model,
    )
    batches = _batches(index, name)
    if url is not None:
        _to_qdrant(about, batches, url=url)
        return about
    assert out is not None
    with writing_folder(out, marker=ABOUT, holds=_HOLDS) as folder:
        if to == "lancedb":
            _to_lancedb(about, batches, folder)
        else:
            _to_qdrant(about, batches, path=str(folder))
        write_text(folder / ABOUT, json.dumps(asdict(about), indent=2) + "\n")
    return about


class _Batch(NamedTuple):
    first: int
    ids: list[str]
    direction: np.ndarray
    """(images, width)"""
    vectors: np.ndarray | None
    """(images, vectors, width)"""


def _batches(index: IndexFolder, name: str | None) -> Iterator[_Batch]:
    first = 0
    for rows in index.rows.split(_BATCH):
        ids = [index.entry(row)["id"] for row in rows.tolist()]
        parts = [
            torch.cat(index.gather(rows, lambda tensors, inside, n=n: tensors[n][inside])).numpy()
            for n in ("direction", *([name] if name else []))
        ]
        yield _Batch(first, ids, parts[0], parts[1] if name else None)
        first += len(ids)


def _to_lancedb(about: Exported, batches: Iterator[_Batch], folder: Path) -> None:
    try:
        import lancedb
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("lancedb", "lancedb") from None
    vector = pa.list_(pa.float16(), about.width)
    fields = [("id", pa.string()), ("direction", vector)]
    fields += [("vectors", pa.list_(vector))] if about.vectors else []
    schema = pa.schema(fields)

    def flat(values: np.ndarray) -> Any:
        numbers = pa.array(values.astype(np.float16).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(numbers, about.width)

    def records() -> Iterator[Any]:
        for batch in batches:
            columns = [pa.array(batch.ids, pa.string()), flat(batch.direction)]
            if batch.vectors is not None:
                ends = np.arange(len(batch.ids) + 1, dtype=np.int32) * about.vectors
                columns.append(pa.ListArray.from_arrays(pa.array(ends), flat(batch.vectors)))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    lancedb.connect(folder).create_table(about.table, data=records(), schema=schema)


def _to_qdrant(about: Exported, batches: Iterator[_Batch], **where: Any) -> None:
    try:
        from qdrant_client import QdrantClient, models
    except ImportError:
        raise MissingExtraError("qdrant-client", "qdrant") from None
    settings: dict[str, Any] = {
        "size": about.width,
        "distance": models.Distance.COSINE,
        "datatype": models.Datatype.FLOAT16,
    }
    fields = {"direction": models.VectorParams(**settings)}
    if about.vectors:
        fields["vectors"] = models.VectorParams(
            **settings,
            multivector_config=models.MultiVectorConfig(
                comparator=models.MultiVectorComparator.MAX_SIM
            ),
            hnsw_config=models.HnswConfigDiff(m=0),  # they rank what the direction has found
        )
    client = QdrantClient(**where)
    try:
        if client.collection_exists(about.table):
            raise InputError(
                f"{where.get('url')}: has a collection {about.table!r} already; remove it first"
            )
        client.create_collection(about.table, vectors_config=fields)
        for batch in batches:
            vectors: dict[str, Any] = {"direction": batch.direction.astype(float).tolist()}
            if batch.vectors is not None:
                vectors["vectors"] = batch.vectors.astype(float).tolist()
            client.upsert(
                about.table,
                models.Batch(
                    ids=list(range(batch.first, batch.first + len(batch.ids))),
                    vectors=vectors,
                    payloads=[{"id": name} for name in batch.ids],
                ),
            )
    except (OSError, EligoError):
        raise
    except Exception as error:
        if "url" not in where:
            raise
        raise InputError(
            f"{where['url']}: {reason(error)}; expected the address of a Qdrant server"
        ) from error
    finally:
        client.close()
