"""From questions and answers to a pool and queries with vectors. Section 2, Pool."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eligo.errors import InputError
from eligo.pretrained.chat import place_image
from eligo.shots.data.items import Item, image_group
from eligo.shots.data.query import Query
from eligo.shots.inference.encoders import Encoder
from eligo.shots.inference.folder import save_embedded
from eligo.shots.pool.pool import Pool

CandidateText = Literal["question_answer", "question"]


def embed(
    out: Path,
    items: Sequence[Item],
    queries: Sequence[Item] | None,
    encoder: Encoder,
    *,
    name: str,
    candidate_text: CandidateText = "question_answer",
) -> tuple[Pool, Pool]:
    """Write the folder of a pool and its queries; without queries, every example is one."""
    both = candidate_text == "question_answer"
    pool = _embedded(items, encoder, both)
    asked = _embedded(items if queries is None else queries, encoder, False)
    if set(asked.views) != set(pool.views):
        raise InputError(
            f"examples have {', '.join(pool.views)}, queries have {', '.join(asked.views)}; "
            "expected images on both sides or on none"
        )
    save_embedded(
        out, pool, asked, {"format": 1, "encoder": name, "candidate_text": candidate_text}
    )
    return pool, asked


def embed_query(
    encoder: Encoder, name: str, question: str, image: str | None, group: str | None = None
) -> Query:
    """One question, embedded as the queries of a folder are."""
    if image is not None:
        question = place_image(question, "question")
    views = {"text": encoder.texts([question])[0]}
    if image is not None:
        views = {"image": encoder.images([image])[0], **views}
        group = group or image_group(image)
    return Query(name, views, group=group, text=question)


def _embedded(items: Sequence[Item], encoder: Encoder, with_answer: bool) -> Pool:
    texts = [f"{item.question} {item.answer}" if with_answer else item.question for item in items]
    views = {"text": encoder.texts(texts)}
    images = [item.image for item in items if item.image is not None]
    if len(images) == len(items):
        views = {"image": encoder.images(images), **views}
    elif images:
        raise InputError(
            f"{len(items) - len(images)} of {len(items)} have no image; give one to all or none"
        )
    groups = [item.group for item in items]
    return Pool(
        [item.id for item in items],
        views,
        groups=groups if any(group is not None for group in groups) else None,
        payload=[item.payload for item in items],
    )
