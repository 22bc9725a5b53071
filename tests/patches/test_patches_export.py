"""Exported indexes: the databases rank by MaxSim of the vectors that the index holds."""

import json
import sys

import numpy as np
import pytest
import torch

from eligo.cli import main
from eligo.errors import InputError, MissingExtraError
from eligo.patches.index import IndexFolder, ScenePictures, TextLines, build_index
from eligo.patches.index.export import export_index, query_vectors
from eligo.patches.model.functional import unit
from eligo.patches.model.retrieval_model import RetrievalModel

TEXTS = ("a red ball.", "there is a blue box left of a green star.")
COUNT = 70  # more than one batch
KINDS = pytest.mark.parametrize("kind", ["open", "late", "global"])
ENGINES = pytest.mark.parametrize("engine", ["lancedb", "qdrant"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Models of each kind, and their indexes."""
    folder = tmp_path_factory.mktemp("export")
    models = {}
    for kind in ("open", "late", "global"):
        torch.manual_seed(0)
        models[kind] = RetrievalModel.tiny(kind=kind).eval()
        scenes = ScenePictures.first(COUNT, 56)
        build_index(lambda kind=kind: models[kind], scenes, folder / kind, shard_size=32)
    return folder, models


@torch.no_grad()
def by_hand(model, index: IndexFolder, text: str) -> torch.Tensor:
    """MaxSim of the words with slots or patches; the cosine of one vector each, if that is all."""
    tensors = [shard.tensors for shard in index.shards]
    if model.config.match.kind == "global":
        stored = torch.cat([part["direction"] for part in tensors]).double()
        return unit(stored) @ unit(model.net.text_vectors(model.text_side([text]))[0].double())
    name = "folded" if model.config.match.kind == "open" else "patches"
    stored = unit(torch.cat([part[name] for part in tensors]).double())
    words = unit(model.encode_texts([text]).words[0].double())
    return torch.stack([(words @ image.T).amax(1).sum() for image in stored])


def found(engine: str, folder, query, k: int = 10) -> dict[str, float]:
    """Ids and how much less than the best they score."""
    direction, vectors = query.direction.tolist(), query.vectors
    if engine == "lancedb":
        lancedb = pytest.importorskip("lancedb")
        table = lancedb.connect(folder).open_table("images")
        asked = direction if vectors is None else vectors.numpy()
        column = "direction" if vectors is None else "vectors"
        search = table.search(asked, vector_column_name=column).distance_type("cosine")
        rows = search.limit(k).to_list()  # what a distance is counted from depends on the version
        return {row["id"]: rows[0]["_distance"] - row["_distance"] for row in rows}
    qdrant = pytest.importorskip("qdrant_client")
    client = qdrant.QdrantClient(path=str(folder))
    asked = direction if vectors is None else vectors.tolist()
    using = "direction" if vectors is None else "vectors"
    points = client.query_points("images", query=asked, using=using, limit=k).points
    client.close()
    return {point.payload["id"]: point.score - points[0].score for point in points}


@KINDS
@ENGINES
def test_database_ranks_by_maxsim(world, tmp_path, engine, kind):
    pytest.importorskip("lancedb" if engine == "lancedb" else "qdrant_client")
    folder, models = world
    index = IndexFolder(folder / kind)
    about = export_index(index, engine, out=tmp_path / "out")
    assert (about.images, about.to) == (COUNT, engine)
    assert about.vectors == {"open": 9, "late": 49, "global": 0}[kind]
    names = [entry["id"] for entry in index.entries]
    for text in TEXTS:
        scores = by_hand(models[kind], index, text)
        expected = scores.topk(10)
        got = found(engine, tmp_path / "out", query_vectors(models[kind], text))
        # Half precision may swap near ties: the scores are compared, and those of what was found.
        near = {"rel": 0, "abs": 2e-3 * len(models[kind].encode_texts([text]).words[0])}
        differences = (expected.values - expected.values[0]).tolist()
        assert list(got.values()) == pytest.approx(differences, **near)
        own = [float(scores[names.index(name)] - expected.values[0]) for name in got]
        assert list(got.values()) == pytest.approx(own, **near)


@ENGINES
def test_export_command(world, tmp_path, capsys, engine):
    pytest.importorskip("lancedb" if engine == "lancedb" else "qdrant_client")
    index, out = str(world[0] / "open"), tmp_path / "out"
    command = ["patches", "export", index, "--to", engine, "--out", str(out), "--json"]
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["images"] == COUNT
    assert json.loads((out / "eligo.json").read_text()) == printed
    assert main(command) == 0  # our own older export is replaced
    (out / "mine.txt").write_text("mine")
    assert main(command) == 2
    assert "also holds files that eligo did not write" in capsys.readouterr().err


def test_removed_photos_are_not_exported(world, tmp_path):
    pytest.importorskip("lancedb")
    _, models = world
    index = tmp_path / "index"
    for count in (9, 5):
        build_index(lambda: models["open"], ScenePictures.first(count, 56), index)
    export_index(index, "lancedb", out=tmp_path / "out")
    query = query_vectors(models["open"], TEXTS[0])
    assert set(found("lancedb", tmp_path / "out", query)) == {f"test_00000{n}" for n in range(5)}


def test_server_of_qdrant(world, monkeypatch):
    """A server gets what the local mode gets; an error of the server is one line."""
    qdrant = pytest.importorskip("qdrant_client")
    local, asked = qdrant.QdrantClient(":memory:"), []

    class Server:
        def __new__(cls, url):
            asked.append(url)
            return local

    monkeypatch.setattr(qdrant, "QdrantClient", Server)
    monkeypatch.setattr(local, "close", lambda: None)
    index = IndexFolder(world[0] / "late")
    export_index(index, "qdrant", url="http://localhost:6333")
    assert asked == ["http://localhost:6333"]
    assert local.count("images").count == COUNT
    with pytest.raises(InputError, match="has a collection 'images' already; remove it first"):
        export_index(index, "qdrant", url="http://localhost:6333")
    local.delete_collection("images")

    def refuse(*_, **__):
        raise RuntimeError("connection refused")

    monkeypatch.setattr(local, "upsert", refuse)
    with pytest.raises(InputError, match="connection refused; expected the address of a Qdrant"):
        export_index(index, "qdrant", url="http://localhost:6333")


def test_invalid_exports_are_refused(world, tmp_path, capsys, monkeypatch):
    folder, models = world
    index = str(folder / "open")
    for words in ((), ("--url", "http://localhost"), ("--url", "http://a", "--out", "b")):
        assert main(["patches", "export", index, "--to", "lancedb", *words]) == 2
        assert "expected --out FOLDER or, for Qdrant, --url" in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("a ball.\n")
    source = TextLines.of(tmp_path / "texts.txt")
    build_index(lambda: models["open"], source, tmp_path / "texts")
    with pytest.raises(InputError, match="is an index of texts; expected an index of images"):
        export_index(IndexFolder(tmp_path / "texts"), "lancedb", out=tmp_path / "out")
    for engine, module in (("lancedb", "lancedb"), ("qdrant", "qdrant_client")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"eligo\[{engine}\]"):
            export_index(IndexFolder(folder / "open"), engine, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["open", "late"])
def test_query_vectors_are_the_words(world, kind):
    model = world[1][kind]
    query = query_vectors(model, TEXTS[1])
    words = model.encode_texts([TEXTS[1]]).words[0].detach()
    np.testing.assert_allclose(query.vectors, unit(words), atol=1e-6)
