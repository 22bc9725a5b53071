"""What is checked before the first call of the host; every problem names the id of its item."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from eligo.errors import InputError
from eligo.images import upright_size
from eligo.pretrained.chat import tokenize
from eligo.shots.config import TeachConfig
from eligo.shots.hosts.prompt import (
    Turn,
    UnscorableError,
    answer_span,
    tokenizer_of,
    turn_of,
    write_opening,
    write_prompt,
)
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.train.check import DataCheck

_log = logging.getLogger("eligo.shots")


def check_turns(pool: Pool, queries: Pool, rows: Sequence[int], processor: Any) -> None:
    """Check all texts and images of the examples and the chosen queries before the first call."""
    check = DataCheck()
    images: dict[str, None] = {}
    for label, source, used in (("examples", pool, range(len(pool))), ("queries", queries, rows)):
        turns = check.each(
            label, [source.ids[row] for row in used], partial(_checked_turn, source, processor)
        )
        images |= {turn.image: None for turn in turns if turn.image is not None}
    check.each("images", list(images), upright_size)
    check.finish()


def _checked_turn(source: Pool, processor: Any, name: str) -> Turn:
    turn = turn_of(source, name)
    if processor is not None:
        try:
            write_prompt(processor, [turn], turn)
        except InputError as error:
            raise InputError(f"example {name!r}: {error}") from None
    return turn


def check_answers(queries: Pool, rows: Sequence[int], processor: Any, instruction: str) -> None:
    """Warn of queries whose answers the host's tokens cannot express; raise if all are such."""
    problems: dict[str, UnscorableError] = {}
    for name in (queries.ids[row] for row in rows):
        turn = turn_of(queries, name)
        try:
            answer_span(processor, write_prompt(processor, [], turn, instruction), turn.answer)
        except UnscorableError as error:
            problems[name] = error
    if not problems:
        return
    first, why = next(iter(problems.items()))
    if len(problems) == len(rows):
        raise InputError(
            f"none of the {len(rows)} queries can be scored: query {first!r}: {why}; give queries "
            "with answers, or a host whose tokenizer fits them"
        )
    _log.warning(
        "%d of %d queries cannot be scored and will be skipped; query %r: %s",
        len(problems), len(rows), first, why,
    )  # fmt: skip


def check_lengths(
    config: TeachConfig,
    pool: Pool,
    queries: Pool,
    rows: Sequence[int],
    processor: Any,
    context: int | None,
) -> None:
    """Raise if a prompt that may be scored is longer than the host's context.

    Tokens of images are not counted: only their processor knows how many there are.
    """
    if context is None:
        return
    tokenizer, instruction = tokenizer_of(processor), config.host.instruction

    def lengths(texts: list[str]) -> list[int]:
        encoded = tokenize(tokenizer, texts, add_special_tokens=True)["input_ids"]
        return [len(ids) for ids in encoded]

    def prompt(shots: Sequence[Turn], query: Turn) -> str:
        return f"{write_prompt(processor, shots, query, instruction)} {query.answer}"

    turns = {name: turn_of(pool, name) for name in pool.ids}
    texts = [write_opening(processor, [turn], instruction) for turn in turns.values()]
    sizes = dict(zip(turns, lengths(texts), strict=True))
    names = [queries.ids[row] for row in rows]
    asked = [turn_of(queries, name) for name in names]
    most = config.shots * max(sizes.values(), default=0)
    check, sampler = DataCheck(), Sampler(pool, config.sampler)

    def check_query(place: int) -> None:
        drawn = sampler.names(queries.query(rows[place]))
        picks = sorted(drawn, key=lambda name: -sizes[name])[: config.shots]
        (length,) = lengths([prompt([turns[name] for name in picks], asked[place])])
        if length > context:
            longest = f" (the longest is {picks[0]!r})" if picks else ""
            raise InputError(
                f"query {names[place]!r}: with {len(picks)} of its candidates{longest} its prompt "
                f"has {length} tokens, and the context of the host is {context}; give fewer "
                "--shots or shorter texts, or --check_data False"
            )

    own = lengths([prompt([], turn) for turn in asked])
    doubtful = [place for place, length in enumerate(own) if length + most > context]
    check.each("lengths", doubtful, check_query)
    check.finish()
