"""Vectors of any source: encoders of text, files, NumPy and torch; bad ones are refused by id."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from shot_cases import save_clip
from shot_hosts import tokenizer

from eligo.cli import main
from eligo.errors import InputError
from eligo.pretrained.encoders import load_encoder, pool_tokens
from eligo.shots import (
    KNN,
    LearnedSelector,
    Pool,
    Query,
    Record,
    embed_texts,
    open_encoder,
    predict,
    predict_batch,
    read_taught,
    read_texts,
    text_pool,
    write_embedded,
)
from strategies import production

MODULES = "sentence_transformers.models"
TEXTS = [f"what is number {n}?" for n in range(8)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [
        {"id": f"d{n}", "input": text, "output": f"at {n % 3}"} for n, text in enumerate(TEXTS)
    ]
    Path("shots.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def command(folder: Path, capsys):
    def command(words: str, code: int = 0):
        assert main(["shots", *words.split(), "--json"]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return command


def save_bert(folder: str) -> None:
    """A tiny random BERT with a tokenizer of letters."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=40,
    )  # fmt: skip
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer("text").save_pretrained(folder)


def save_modules(folder: str, mode: str, *more: str) -> None:
    kinds = ["Transformer", "Pooling", *more]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"{MODULES}.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    Path(folder, "modules.json").write_text(json.dumps(modules))
    Path(folder, "1_Pooling").mkdir(exist_ok=True)
    keys: dict = {"word_embedding_dimension": 16}
    keys |= {
        f"pooling_mode_{key}": key == mode for key in ("cls_token", "mean_tokens", "lasttoken")
    }
    Path(folder, "1_Pooling", "config.json").write_text(json.dumps(keys))


@pytest.mark.parametrize(
    ("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "lasttoken")]
)
def test_sentence_encoder_equals_the_library(folder: Path, mode: str, pooling: str):
    library = pytest.importorskip("sentence_transformers")
    save_bert("bert")
    save_modules("bert", mode, "Normalize")
    Path("bert/sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    theirs = library.SentenceTransformer("bert", device="cpu")
    expected = torch.tensor(theirs.encode(TEXTS))
    ours = load_encoder("encoder", "bert")
    assert ours.longest == 20
    assert ours.pooling == pooling
    found = torch.nn.functional.normalize(ours.texts(TEXTS), dim=-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_text_model_without_modules_pools_the_mean(folder: Path):
    save_bert("bert")
    encoder = load_encoder("encoder", "bert")
    one, several = encoder.texts(TEXTS[:1]), encoder.texts(TEXTS)
    torch.testing.assert_close(one[0], several[0])
    states = encoder.model(**encoder.tokenizer(TEXTS[:1], return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(one, states.mean(1))
    with pytest.raises(InputError, match=r"BertModel reads text only, and cannot embed x\.jpg"):
        encoder.images(["x.jpg"])


def test_pooling_does_not_read_padding():
    states = torch.randn(3, 6, 4)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1] * 6]).bool()
    other = torch.where(mask.unsqueeze(-1), states, torch.randn(3, 6, 4) * 99)
    for pooling in ("mean", "cls", "max", "lasttoken"):
        found = pool_tokens(other, mask, pooling)
        real = [states[row][mask[row]] for row in range(3)]
        expected = {
            "mean": lambda part: part.mean(0), "cls": lambda part: part[0],
            "max": lambda part: part.amax(0), "lasttoken": lambda part: part[-1],
        }[pooling]  # fmt: skip
        torch.testing.assert_close(found, torch.stack([expected(part) for part in real]))


def test_unknown_modules_and_models_without_text_are_refused(folder: Path):
    save_bert("bert")
    save_modules("bert", "mean_tokens", "Dense")
    with pytest.raises(InputError, match=r"got the modules Transformer, Pooling, Dense.*--vectors"):
        load_encoder("encoder", "bert")
    save_modules("bert", "weighted")
    with pytest.raises(InputError, match="got the pooling none, expected one of mean, cls"):
        load_encoder("encoder", "bert")
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    ViTModel(ViTConfig(**sizes, intermediate_size=8, image_size=32)).save_pretrained("vit")
    with pytest.raises(InputError, match="vit holds a vit, which gives texts no vector"):
        open_encoder("vit")


def test_all_encoders_serve_embed_and_predict(command):
    save_bert("bert")
    save_clip("clip")
    for name in ("bert", "clip", "words"):
        found = command(f"embed --data shots.jsonl --encoder {name} --out {name}_out")
        assert (found["examples"], found["views"]) == (8, ["text"])
        flags = f"--selector knn --embedded {name}_out --shots 2"
        assert len(command(f"predict --question what? {flags}")["chosen"]) == 2


def vectors_file(kind: str, vectors: torch.Tensor, ids: list[str]) -> str:
    path = f"vectors.{'safetensors' if kind == 'by_id' else kind}"
    if kind == "npy":
        np.save(path, vectors.numpy())
    elif kind == "safetensors":
        save_file({"anything": vectors}, path)
    elif kind == "by_id":
        save_file({name: row.clone() for name, row in zip(ids, vectors, strict=True)}, path)
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        order = list(reversed(range(len(ids))))  # rows are found by id
        rows = {"id": [ids[n] for n in order], "vector": vectors[order].tolist()}
        parquet.write_table(arrow.table(rows), path)
    return path


@pytest.mark.parametrize("kind", ["npy", "safetensors", "by_id", "parquet"])
def test_own_vectors_from_a_file(command, kind: str):
    vectors = torch.nn.functional.normalize(torch.randn(8, 5), dim=-1)
    ids = [f"d{n}" for n in range(8)]
    path = vectors_file(kind, vectors, ids)
    found = command(f"embed --data shots.jsonl --vectors {path}")
    assert (found["width"], found["views"], found["queries"]) == (5, ["text"], 8)
    torch.testing.assert_close(Pool.load("embedded/pool").vectors, vectors)
    command("predict --data embedded --selector knn --out picks.jsonl --shots 1")
    picks = [json.loads(line)["picks"][0] for line in Path("picks.jsonl").read_text().splitlines()]
    cosines = (vectors @ vectors.T).fill_diagonal_(-2)
    assert picks == [ids[row] for row in cosines.argmax(1).tolist()]

    err = command("predict --question what? --selector knn --embedded embedded", code=2)
    assert "question: has no vector" in err
    assert "--vectors FILE" in err
    np.save("one.npy", vectors[3].numpy())
    words = "predict --question what? --selector knn --embedded embedded --shots 1"
    assert command(f"{words} --vectors one.npy")["chosen"][0]["id"] == "d3"
    for vector in (vectors[3], vectors[3].numpy(), {"text": vectors[3]}):
        chosen = predict("what?", selector="knn", shots="embedded", vector=vector, num_shots=1)
        assert chosen.chosen[0]["id"] == "d3"


def test_bad_vectors_are_refused_with_their_id(command):
    vectors = torch.randn(8, 5)
    ids = [f"d{n}" for n in range(8)]
    for value, row in ((torch.nan, 2), (0.0, 6), (torch.inf, 7)):
        broken = vectors.clone()
        broken[row] = value
        path = vectors_file("npy", broken, ids)
        err = command(f"embed --data shots.jsonl --vectors {path}", code=2)
        assert f"of 'd{row}', row {row} has norm" in err
        with pytest.raises(InputError, match=f"of 'd{row}', row {row} has norm"):
            Pool(ids, broken.numpy())
    save_file({f"d{n}": torch.randn(5 if n != 4 else 6) for n in range(8)}, "ragged.safetensors")
    err = command("embed --data shots.jsonl --vectors ragged.safetensors", code=2)
    assert "'d4': got width 6, expected 5, the width of 'd0'" in err
    np.save("few.npy", np.ones((7, 5), np.float32))
    err = command("embed --data shots.jsonl --vectors few.npy", code=2)
    assert "got 7 vectors (text) for 8 items" in err
    save_file({"d0": torch.ones(5), "x": torch.ones(5)}, "other.safetensors")
    err = command("embed --data shots.jsonl --vectors other.safetensors", code=2)
    assert "has no vector for 'd1' (2 for others)" in err
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "pickled.npy" in command("embed --data shots.jsonl --vectors pickled.npy", code=2)
    np.save("good.npy", vectors.numpy())
    np.save("wide.npy", torch.randn(8, 6).numpy())
    err = command("embed --data shots.jsonl --vectors good.npy --query_vectors wide.npy", code=2)
    assert "its queries have vectors (and widths) {'text': 6}, such as 'd0'" in err
    err = command("embed --data shots.jsonl --vectors good.npy --encoder bert", code=2)
    assert "got --encoder bert and --vectors good.npy, expected one of them" in err
    err = command("embed --data shots.jsonl --queries shots.jsonl --vectors good.npy", code=2)
    assert "give --query_vectors FILE" in err
    assert not Path("embedded").exists()


def test_vectors_of_another_width_are_refused_before_learning():
    pool = Pool([f"d{n}" for n in range(8)], np.random.default_rng(0).normal(size=(8, 5)))
    records = [Record(Query(f"q{n}", torch.randn(5 if n else 4)), ["d1"]) for n in range(6)]
    with pytest.raises(
        InputError, match=r"query 'q0': its vector has width 4, expected the pool's"
    ):
        LearnedSelector("v1").fit(records, pool)
    with pytest.raises(InputError, match="query 'q0': got width 4"):
        KNN().fit([], pool).select(records[0].query, 1)


def test_many_queries_at_once(folder: Path):
    pool = text_pool(read_texts("shots.jsonl"))
    queries = text_pool(read_texts("shots.jsonl"), queries=True)
    selector = KNN().fit([], pool)
    many = selector.select(queries, 3, exclude=["d5"])
    each = [selector.select(query, 3, exclude=["d5"]) for query in queries.queries()]
    assert many.indices.tolist() == [one.indices.tolist() for one in each]
    assert torch.equal(many.scores, torch.stack([one.scores for one in each]))
    assert pool.picked(many) == [pool.picked(one) for one in each]
    names = iter(["d1", "d2"])
    assert selector.select(queries.queries()[:2], 1, candidates=names).num_kept.tolist() == [1, 1]
    assert selector.select([], 2).indices.shape == (0, 2)
    for shots in (-1, 1.5, "2", True):
        with pytest.raises(InputError, match="shots: got"), production():
            selector.select(queries, shots)


def test_text_pools_serve_the_whole_pipeline(folder: Path, command):
    items = read_texts("shots.jsonl")
    write_embedded("embedded", text_pool(items), text_pool(items, queries=True), encoder="words")
    command("teach --shots 2 --beam 2 --sampler.num_candidates 5")
    records, pool = read_taught("taught")
    assert len(records) == 8
    assert records[0].step_scores.shape == (2, 5)
    assert LearnedSelector("v1").fit(records, pool).select(records[0].query, 2).num_kept == 2
    assert predict_batch("embedded", "out.jsonl", selector="bm25", num_shots=1)["queries"] == 8
    with pytest.raises(InputError, match="is no folder; expected one that `eligo shots teach`"):
        read_taught("nothing")


def test_numpy_and_torch_vectors_are_the_same():
    vectors = embed_texts(TEXTS, dim=32)
    ids = [f"d{n}" for n in range(8)]
    pools = [Pool(ids, part) for part in (vectors, vectors.numpy(), {"text": vectors.numpy()})]
    picks = [
        KNN().fit([], pool).select(Query("q", part), 3).indices.tolist()
        for pool, part in zip(
            pools, (vectors[1], vectors[1].numpy(), {"text": vectors[1].numpy()}), strict=True
        )
    ]
    assert picks[0] == picks[1] == picks[2]
    more = pools[1].add(["new"], vectors[:1].numpy())
    assert torch.equal(more.vectors[-1], more.vectors[0])
    with pytest.raises(InputError, match=r"expected a float tensor .* or an array of NumPy"):
        Pool(ids, np.ones((8, 3), dtype=int))
