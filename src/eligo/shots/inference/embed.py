"""Embed questions and answers as a pool and queries, and the folder that holds both:

pool/       the examples (see `Pool.save`)
queries/    the queries, in the same form: embedded by their question alone
embed.json  the encoder, and which text of an example it embedded
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError
from torch import Tensor

from eligo.errors import InputError
from eligo.io.files import writing, writing_folder
from eligo.io.interrupts import Delayed, Interrupted
from eligo.io.json_lines import JsonRow
from eligo.io.locks import one_writer
from eligo.io.reading import read_object
from eligo.pretrained.chat import place_image
from eligo.shots.data.items import Item, image_group
from eligo.shots.data.query import Query
from eligo.shots.data.vectors import read_vectors
from eligo.shots.inference.encoders import GIVEN, Encoder
from eligo.shots.pool.pool import ITEMS, VECTORS, Pool

POOL, QUERIES, ABOUT = "pool", "queries", "embed.json"
CandidateText = Literal["question_answer", "question"]


class _Payload(JsonRow):
    question: str
    answer: str
    image: str | None = None
    answers: list[str] | None = None


def embed(
    out: str | Path,
    items: Sequence[Item],
    queries: Sequence[Item] | None,
    encoder: Encoder,
    *,
    name: str,
    candidate_text: CandidateText = "question_answer",
) -> tuple[Pool, Pool]:
    """Embed a pool and its queries (by default every example) and write their folder."""
    pool = embedded_pool(items, encoder, candidate_text)
    asked = items if queries is None else queries
    query_pool = _pool(asked, _embedded(asked, encoder, False))
    if set(query_pool.views) != set(pool.views):
        raise InputError(
            f"examples have {', '.join(pool.views)}, queries have {', '.join(query_pool.views)}; "
            "expected images on both sides or on none"
        )
    write_embedded(out, pool, query_pool, encoder=name, candidate_text=candidate_text)
    return pool, query_pool


def embed_given(
    out: str | Path,
    items: Sequence[Item],
    queries: Sequence[Item] | None,
    vectors: Path,
    query_vectors: Path | None = None,
) -> tuple[Pool, Pool]:
    """Write the folder of a pool and its queries with the vectors of files.

    Without `query_vectors`, which `queries` need, a query has the vector of its example.
    """
    if queries is not None and query_vectors is None:
        raise InputError("queries: have no vectors; give --query_vectors FILE")
    asked = items if queries is None else queries
    pool = _pool(items, read_vectors(vectors, [item.id for item in items]))
    views = read_vectors(query_vectors or vectors, [item.id for item in asked])
    query_pool = _pool(asked, views)
    write_embedded(out, pool, query_pool)
    return pool, query_pool


def embed_query(
    encoder: Encoder, name: str, question: str, image: str | None, group: str | None = None
) -> Query:
    """Embed one question in the same way as the queries of a folder."""
    if image is not None:
        question = place_image(question, "question")
    views = {"text": encoder.texts([question])[0]}
    if image is not None:
        views = {"image": encoder.images([image])[0], **views}
        group = group or image_group(image)
    return Query(name, views, group=group, text=question)


def embedded_pool(
    items: Sequence[Item], encoder: Encoder, candidate_text: CandidateText = "question_answer"
) -> Pool:
    """Return examples as a pool, with the vectors of an encoder."""
    return _pool(items, _embedded(items, encoder, candidate_text == "question_answer"))


def _embedded(items: Sequence[Item], encoder: Encoder, with_answer: bool) -> dict[str, Tensor]:
    texts = [f"{item.question} {item.answer}" if with_answer else item.question for item in items]
    views = {"text": encoder.texts(texts)}
    images = [item.image for item in items if item.image is not None]
    if len(images) == len(items):
        views = {"image": encoder.images(images), **views}
    elif images:
        raise InputError(
            f"{len(items) - len(images)} of {len(items)} have no image; give one to all or to none"
        )
    return views


def _pool(items: Sequence[Item], views: dict[str, Tensor]) -> Pool:
    groups = [item.group for item in items]
    return Pool(
        [item.id for item in items],
        views,
        groups=groups if any(group is not None for group in groups) else None,
        payload=[item.payload for item in items],
    )


def write_embedded(
    folder: str | Path,
    pool: Pool,
    queries: Pool,
    *,
    encoder: str = GIVEN,
    candidate_text: CandidateText = "question_answer",
) -> None:
    """Write the folder that `teach` reads, of pools with questions and answers (`text_pool`).

    `encoder` names what embedded both: words, a folder or a hub name; by default they are vectors
    of your own, and a new question needs its vector too.
    """
    _check_widths(pool, queries, Path(folder))
    about = {"format": 1, "encoder": encoder, "candidate_text": candidate_text}
    save_embedded(Path(folder), pool, queries, about)


def save_embedded(folder: Path, pool: Pool, queries: Pool, about: dict[str, Any]) -> None:
    """Write the folder; embed.json is written last and marks it as complete.

    Signals are delayed until all files are written, so that examples and queries match.
    """
    with (
        Delayed() as signals,
        one_writer(folder),
        writing(folder / ABOUT) as about_file,
        _writing_pool(folder / POOL) as pool_folder,
        _writing_pool(folder / QUERIES) as query_folder,
    ):  # replaces older files only when all are written
        pool.save(pool_folder)
        queries.save(query_folder)
        about_file.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    if signals.number:
        raise Interrupted(signals.number, f"stopped; {folder} is written")


def _writing_pool(folder: Path) -> AbstractContextManager[Path]:
    return writing_folder(folder, marker=ITEMS, holds=(ITEMS, VECTORS))


def open_embedded(folder: Path) -> tuple[Pool, Pool, dict[str, Any]]:
    """Load examples, queries, and how they were embedded."""
    if not (folder / ABOUT).is_file():
        raise InputError(
            f"{folder}: holds no embedded examples (no {ABOUT}); make it with `eligo shots embed "
            f"--data examples.jsonl --out {folder}`"
        )
    about = read_object(folder / ABOUT, "`eligo shots embed`")
    for key, expected in (("encoder", None), ("candidate_text", get_args(CandidateText))):
        value = about.get(key)
        if not isinstance(value, str) or (expected and value not in expected):
            raise InputError(
                f"{folder / ABOUT}: {key}: got {value!r:.60}, expected "
                f"{' or '.join(expected) if expected else 'the name of an encoder'}; embed again"
            )
    pool, queries = _load_pool(folder / POOL), _load_pool(folder / QUERIES)
    if len(queries):
        _check_widths(pool, queries, folder)
    return pool, queries, about


def _check_widths(pool: Pool, queries: Pool, where: Path) -> None:
    """Raise unless the vectors of queries can be compared with those of the examples."""
    got, expected = (
        {name: view.shape[1] for name, view in sorted(part.views.items())}
        for part in (queries, pool)
    )
    if got != expected:
        raise InputError(
            f"{where}: its queries have vectors (and widths) {got}, such as {queries.ids[0]!r}; "
            f"its examples {expected}; embed both in the same way"
        )


def _load_pool(folder: Path) -> Pool:
    """Load examples or queries; their texts were perhaps edited by hand."""
    pool = Pool.load(folder)
    for name, payload in zip(pool.ids, pool.payload or (), strict=False):
        try:
            _Payload.model_validate(payload)
        except ValidationError:
            raise InputError(
                f"{folder / ITEMS}: {name!r}: got payload {payload!r:.80}, expected question and "
                "answer (and image, answers) as texts; embed again"
            ) from None
    return pool
