"""Pools, queries, records and text files."""

import hashlib
import re

import pytest
import torch
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.shots import Pool, Query, Record, embed_texts, read_texts, text_pool
from eligo.shots.data.query import joined
from eligo.shots.data.records import collate, encode_record
from eligo.shots.data.text import embed_tokens
from strategies import production


def a_pool(**changes) -> Pool:
    columns = {
        "groups": ["x", "x", None, "y"],
        "payload": ["one", {"question": "two?", "answer": "2"}, "three", "four"],
        "token_costs": [3, 1, 2, 5],
        "domains": ["p", "q", "p", "p"],
        **changes,
    }
    views = {"image": torch.randn(4, 6), "text": torch.randn(4, 6)}
    return Pool(["a", "b", "c", "d"], views, **columns)


def test_joined_views_are_normalised_means():
    pool = a_pool()
    for row in range(4):
        image, text = pool.views["image"][row], pool.views["text"][row]
        mean = (image / image.norm() + text / text.norm()) / 2
        torch.testing.assert_close(pool.vectors[row], mean / mean.norm())
    one = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(joined({"a": one, "b": -one}), F.normalize(one, dim=0))


def test_pool_round_trip(tmp_path):
    pool = a_pool()
    pool.save(tmp_path / "pool")
    again = Pool.load(tmp_path / "pool")
    assert again.content_hash == pool.content_hash
    assert again.ids == pool.ids
    assert again.token_costs == pool.token_costs
    assert again.texts == ["one", "two? 2", "three", "four"]
    plain = Pool(["ö", "2"], torch.eye(2))
    plain.save(tmp_path / "plain")
    assert Pool.load(tmp_path / "plain").content_hash == plain.content_hash
    assert Pool.load(tmp_path / "plain").groups is None


def test_hash_depends_on_every_column():
    torch.manual_seed(1)
    pool = a_pool()
    others = [pool.take(torch.tensor([1, 0, 2, 3]))]
    for change in ({"groups": None}, {"token_costs": [3, 1, 2, 6]}, {"domains": None}):
        torch.manual_seed(1)
        others.append(a_pool(**change))
    torch.manual_seed(1)
    assert a_pool().content_hash == pool.content_hash
    assert len({pool.content_hash, *(other.content_hash for other in others)}) == 5


def test_add_and_remove():
    pool = a_pool()
    more = {"image": torch.randn(1, 6), "text": torch.randn(1, 6)}
    grown = pool.add(["e"], more, token_costs=[9], payload=["five"])
    assert grown.ids == ("a", "b", "c", "d", "e")
    assert grown.groups == ("x", "x", None, "y", None)
    back = grown.remove(["a", "e"])
    assert back.ids == ("b", "c", "d")
    assert torch.equal(back.vectors, pool.vectors[1:])
    assert back.token_costs == (1, 2, 5)
    assert len(pool) == 4


def test_single_view_needs_no_name():
    pool = Pool(["a"], {"text": torch.ones(1, 2)})
    assert list(pool.add(["b"], torch.eye(2)[:1]).views) == ["text"]


def test_unicode_line_separators_round_trip(tmp_path):
    texts = ["one\u2028two", "three\u0085four\u2029", "\x1cfive\x0b"]
    Pool(["a", "b", "c"], torch.eye(3), payload=texts).save(tmp_path / "pool")
    assert list(Pool.load(tmp_path / "pool").payload) == texts


def test_allowed_candidates_of_a_query():
    pool = a_pool()
    query = Query("c", torch.randn(6), group="x", domain="p")
    assert pool.allowed(query).tolist() == [False, False, False, True]
    assert pool.allowed(query, ["d"]).tolist() == [False] * 4
    assert a_pool(domains=None).allowed(Query("z", torch.randn(6))).all()
    assert not pool.allowed(Query("z", torch.randn(6))).any()  # without a domain


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pool(["a", "a"], torch.eye(2)), "id 'a' comes twice"),
        (lambda: Pool(["a"], torch.eye(2)), "got 2 embedding for 1 ids"),
        (lambda: Pool(["a", "b"], torch.tensor([[1.0], [0.0]])), "row 1 has norm 0.0"),
        (lambda: Pool(["a"], torch.tensor([[torch.nan]])), "row 0 has norm nan"),
        (lambda: Pool(["a"], torch.ones(1)), "expected a float tensor (items, dim)"),
        (lambda: Pool(["a", "b"], torch.eye(2), groups=["x"]), "got 1 groups for 2 ids"),
        (lambda: a_pool().rows(["aa"]), "has no 'aa'"),
        (lambda: a_pool().add(["e"], torch.randn(1, 6)), "got views ['embedding']"),
        (lambda: Pool(["a"], torch.eye(1)).add(["b"], torch.ones(1, 2)), "got width"),
        (lambda: Pool(["a"], torch.eye(1)).texts, "has no payload"),
        (lambda: Pool(["a"], torch.eye(1), payload=[3]).texts, "got 3, expected text"),
        (lambda: Pool(["a"], torch.eye(1)).costs, "has no token_costs"),
        (lambda: Pool(["a"], torch.eye(1), payload=[{1j}]).content_hash, "written as JSON"),
        (lambda: Pool([1, 2], torch.eye(2)), "Pool: got id 1, expected text"),
        (lambda: Query(7, torch.ones(3)), "Query: got id 7, expected text"),
        (lambda: Query("q", torch.zeros(3)).vector, "Query 'q': embedding has norm 0.0"),
    ],
)
def test_invalid_pools_are_refused(make, message: str):
    with pytest.raises(InputError, match=re.escape(message)), production():
        make()


def test_invalid_pool_files_are_refused(tmp_path):
    a_pool().save(tmp_path)
    lines = (tmp_path / "items.jsonl").read_text().splitlines()
    for text, message in [
        ("\n".join([lines[0], "{oops"]), "items.jsonl:2:2: not valid JSON"),
        ("\n".join([lines[0], lines[0]]), "items.jsonl:2: id: got 'a', which line 1 has too"),
        ('{"name": "a"}', "items.jsonl:1: id: missing; got only name"),
        ("[1]", "items.jsonl:1: got '[1]', expected a JSON object"),
        ("\n".join(reversed(lines)), "does not belong to"),
    ]:
        (tmp_path / "items.jsonl").write_text(text)
        with pytest.raises(InputError, match=re.escape(message)):
            Pool.load(tmp_path)
    (tmp_path / "embeddings.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read"):
        Pool.load(tmp_path)
    with pytest.raises(InputError, match="there is no such file"):
        Pool.load(tmp_path / "nowhere")


# Records ---------------------------------------------------------------------------------------


def big_pool(size: int = 20) -> Pool:
    return Pool(
        [f"d{i}" for i in range(size)], torch.randn(size, 6), groups=["g"] * 2 + [None] * (size - 2)
    )


def test_records_become_positions_by_id():
    pool = big_pool()
    record = Record(
        Query("q", torch.randn(6)),
        ["d7", "d3"],
        candidates=["d3", "d9", "d7"],
        scores=[0.5, float("nan")],
        step_scores=torch.arange(6.0).reshape(2, 3),
        weight=2.0,
    )
    plain = Record(Query("p", torch.randn(6)), ["d5"], candidates=["d1", "d5"])
    batch = collate([encode_record(record, pool, 4), encode_record(plain, pool, 4)], pool)
    assert batch.labels.tolist() == [[2, 0], [1, -1]]
    assert batch.mask.tolist() == [[True] * 3, [True, True, False]]
    torch.testing.assert_close(batch.candidates[0, 2], pool.vectors[7])
    assert batch.candidates[1, 2].eq(0).all()
    assert batch.beam_scores is not None
    assert batch.beam_scores.isnan().tolist() == [[False, True], [True, True]]
    assert batch.step_scores is not None
    assert batch.step_scores[1].isnan().all()
    assert batch.weights.tolist() == [2.0, 1.0]


def test_drawn_candidates_depend_only_on_the_query():
    pool = big_pool()
    places = []
    for number in range(60):
        query = Query(f"q{number}", torch.randn(6), group="g")
        one = encode_record(Record(query, ["d4", "d6"]), pool, 8, seed=3)
        assert torch.equal(
            one.rows, encode_record(Record(query, ["d4", "d6"]), pool, 8, seed=3).rows
        )
        assert len(set(one.rows.tolist())) == 8
        assert not set(one.rows.tolist()) & {0, 1}  # its group
        assert one.rows[one.labels].tolist() == [4, 6]
        places.append(int(one.labels[0]))
    assert len(set(places)) == 8  # the position carries no information
    assert len(encode_record(Record(query, ["d4"]), pool, 99).rows) == 18


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"picks": ["d4", "d4"]}, "name one example twice"),
        ({"picks": ["d9"], "candidates": ["d3"]}, "pick 'd9' is not among its 1 candidates"),
        ({"candidates": ["d4", "d0"]}, "candidate 'd0' is the query itself, or of its group"),
        ({"candidates": ["d4", "d5", "d5"]}, "candidates name one example twice"),
        ({"picks": ["d77"]}, "has no 'd77'"),
        ({"scores": [1.0, 2.0]}, "got 2 scores for 1 picks"),
        ({"step_scores": torch.zeros(1, 3)}, "has step_scores but no candidates"),
        (
            {"step_scores": torch.zeros(1, 3), "candidates": ["d4", "d5"]},
            "expected (picks, candidates) (1, 2)",
        ),
    ],
)
def test_invalid_records_are_refused(changes: dict, message: str):
    record = Record(**{"query": Query("q", torch.randn(6), group="g"), "picks": ["d4"], **changes})
    with pytest.raises(InputError, match=re.escape(message)):
        encode_record(record, big_pool(), 5)


# Text ------------------------------------------------------------------------------------------


def test_read_texts_from_files(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(
        '{"id": 1, "input": "a", "output": "b"}\n\n'
        '{"id": "2", "input": "c", "output": "d", "group": "g"}\n'
    )
    assert [tuple(item) for item in read_texts(path)] == [
        ("1", "a", "b", None),
        ("2", "c", "d", "g"),
    ]
    pool = text_pool(read_texts(path))
    assert pool.texts == ["a b", "c d"]
    assert pool.groups == (None, "g")
    torch.testing.assert_close(pool.vectors, embed_texts(["a b", "c d"]))
    assert text_pool(read_texts(path), lambda texts: torch.eye(len(texts))).vectors.shape == (2, 2)
    path.write_text('{"id": 1, "input": "a", "output": "b"}\n', encoding="utf-8-sig")
    assert len(read_texts(path)) == 1
    path.write_text('{"id": 1, "input": "a"}\n')
    with pytest.raises(InputError, match=r"texts\.jsonl:1: output: missing; got only id, input"):
        read_texts(path)
    path.write_text('{"id": 1, "input": ["a"], "output": "b"}\n')
    with pytest.raises(InputError, match=r"texts\.jsonl:1: input: got \['a'\], expected text"):
        read_texts(path)


def test_embedded_texts_are_reproducible():
    texts = ["what colour is the ball?", "what colour is the box?", "count cats", "", "!"]
    vectors = embed_texts(texts, 256)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    assert torch.equal(embed_texts(texts[:1], 256)[0], vectors[0])
    # Reproducible: does not use the hash of Python.
    number = int.from_bytes(hashlib.blake2b(b"ball", digest_size=8).digest(), "big")
    expected = torch.zeros(64)
    expected[(number >> 1) % 64] = 1.0 if number & 1 else -1.0
    assert torch.equal(embed_texts(["ball"], 64)[0], expected)
    table = torch.randn(5, 3)
    found = embed_tokens(["x"], table, lambda text: [1, 4])
    torch.testing.assert_close(found[0], F.normalize(table[[1, 4]].mean(0), dim=0))
    with pytest.raises(InputError, match="has no token"):
        embed_tokens(["x"], table, lambda text: [])
