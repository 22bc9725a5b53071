"""Log-probability of the correct answer after given examples, by a host.

Prompts of all queries of a call run together, in batches of similar length (`TokenBatches`). They
are padded on the left, the tokens of their answers are appended, and exactly those are scored.

What prompts have in common at their beginning is read once, and each continues from its cached keys
and values: with placement `append` the picks so far, else what the template puts first. A host that
computes positions itself (like Qwen2.5-VL), or that does not cache all tokens, reads all prompts
whole, and so does one with images and placement `prepend`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.hosts.batches import TokenBatches
from eligo.shots.hosts.forward import (
    continued,
    has_plain_cache,
    read_beginnings,
    span_logprobs,
)
from eligo.shots.hosts.prompt import (
    Placement,
    Turn,
    UnscorableError,
    answer_span,
    in_prompt_order,
    turn_of,
    write_opening,
)
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.tokens import Ids, common_length, padded
from eligo.shots.pool.pool import Pool

_MIN_SHARED = 16  # tokens; a shorter beginning is not worth a forward pass of its own
_MAX_LOGITS = 1 << 29  # values of the answers' logits in one batch: 2 GiB
_CALLS = {"cuda": 4096}  # prompts that share batches; on a CPU, those of one query
_CACHED = 1 << 16


class Scores(NamedTuple):
    """Scores of one answer after different examples."""

    logprob: Float[Tensor, " candidates"]
    """Sum over the answer's tokens; float32, on the CPU."""
    num_tokens: int


class Request(NamedTuple):
    """A query, and lists of examples (in order of choice) to score its answer after."""

    query: Query
    lists: Sequence[Sequence[str]]


@runtime_checkable
class Scorer(Protocol):
    """The interface that a teacher uses."""

    def baseline(self, query: Query) -> Scores:
        """Score the answer without any example."""
        ...

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """Score the examples `(*prefix, c)`, in order of choice, for each candidate c."""
        ...


class ListScorer(Scorer, Protocol):
    """A scorer of whole lists, for evaluation."""

    def score_lists(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        """Score whole lists of examples, in order of choice."""
        ...


@runtime_checkable
class PoolingScorer(Protocol):
    """A scorer that is faster with the prompts of several queries at once."""

    calls_together: int
    """About how many prompts to give it at once."""

    def score_all(self, requests: Sequence[Request]) -> list[Scores | UnscorableError]:
        """Score the lists of several queries; an answer without tokens gives its error."""
        ...


class OneQuery:
    """One query at a time, for scorers that score several together."""

    def score_all(self, requests: Sequence[Request]) -> list[Scores | UnscorableError]:
        """Score the lists of several queries; one that cannot be scored gives its error."""
        raise NotImplementedError

    def baseline(self, query: Query) -> Scores:
        """Score the answer without any example."""
        return self.score_lists(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """Score the examples `(*prefix, c)`, in order of choice, for each candidate c."""
        return self.score_lists(query, [(*prefix, name) for name in candidates])

    def score_lists(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        """Score whole lists of examples, in order of choice."""
        scores = self.score_all([Request(query, lists)])[0]
        if isinstance(scores, UnscorableError):
            raise scores
        return scores


class _Row(NamedTuple):
    """One prompt to score."""

    query: str
    picks: tuple[str, ...]
    shots: list[Turn]
    """In order of the prompt."""
    turn: Turn
    span: Ids


class HostScorer(OneQuery):
    """Log-probabilities of the queries' answers, by a host."""

    def __init__(
        self,
        reader: Reader,
        pool: Pool,
        queries: Pool,
        *,
        placement: Placement = "prepend",
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        share: bool = True,
    ) -> None:
        """`share`: read the prompts' common beginnings once, if the host allows it."""
        self.reader, self.share = reader, share
        self.placement: Placement = placement
        self.pool, self.queries = pool, queries
        self.batches = TokenBatches(reader.device, batch_tokens, batch_size)
        self.calls_together = _CALLS.get(reader.device.type, 1)
        self._turn = lru_cache(_CACHED)(lambda name: turn_of(pool, name))
        self._query = lru_cache(_CACHED)(self._read_query)

    def score_all(self, requests: Sequence[Request]) -> list[Scores | UnscorableError]:
        """Score the lists of several queries; an answer without tokens gives its error."""
        rows: list[_Row] = []
        found: list[tuple[slice, int] | UnscorableError] = []
        for query, lists in requests:
            try:
                turn, span = self._query(query.id)
            except UnscorableError as error:
                found.append(error)
                continue
            start = len(rows)
            for names in lists:
                shots = [self._turn(name) for name in in_prompt_order(names, self.placement)]
                rows.append(_Row(query.id, tuple(names), shots, turn, span))
            found.append((slice(start, len(rows)), len(span)))
        logprob = self._logprobs(rows)
        return [
            one if isinstance(one, UnscorableError) else Scores(logprob[one[0]], one[1])
            for one in found
        ]

    def _read_query(self, name: str) -> tuple[Turn, Ids]:
        """The turn of a query, and the tokens of its answer."""
        turn = turn_of(self.queries, name)
        span = answer_span(self.reader.processor, self.reader.prompt([], turn), turn.answer)
        return turn, np.asarray(span)

    def _logprobs(self, rows: Sequence[_Row]) -> Float[Tensor, " rows"]:
        """Return the scores of all rows, fetched from the device once."""
        values = torch.empty(len(rows))
        if rows:
            parts = self._with_images(rows) if self.reader.reads_images else self._texts(rows)
            order = [number for numbers, _ in parts for number in numbers]
            values[order] = torch.cat([part for _, part in parts]).cpu()
        return values

    # ------------------------------------------------------------------ hosts that read text

    def _texts(self, rows: Sequence[_Row]) -> list[tuple[list[int], Tensor]]:
        reader = self.reader
        pad = int(reader.tokenizer.pad_token_id or 0)
        ids = reader.prompt_ids([row.shots for row in rows], [row.turn for row in rows])
        begun = self._shared_lengths(rows, ids)
        lengths = [  # a token that was read before only takes its keys and values
            len(own) - start + start // 4 + len(row.span)
            for own, start, row in zip(ids, begun, rows, strict=True)
        ]

        def run(numbers: list[int]) -> Tensor:
            cache, mask = None, None
            if any(begun[n] for n in numbers):
                beginnings = [ids[n][: begun[n]] for n in numbers]
                cache, mask = read_beginnings(reader.model, beginnings, pad, reader.device)
            own, real = padded([ids[n][begun[n] :] for n in numbers], pad, reader.device)
            inputs = {"input_ids": own, "attention_mask": real}
            spans = [rows[n].span for n in numbers]
            return span_logprobs(reader.model, inputs, spans, cache, mask)

        return self.batches.run(lengths, run, self._most_rows(rows))

    def _shared_lengths(self, rows: Sequence[_Row], ids: Sequence[Ids]) -> list[int]:
        """How many first tokens of each prompt are read together with those of others."""
        begun = [0] * len(rows)
        if not self.share or not has_plain_cache(self.reader.model):
            return begun
        groups: dict[Any, list[int]] = {}
        for number, row in enumerate(rows):
            key = (row.query, row.picks[:-1]) if self.placement == "append" else None
            groups.setdefault(key, []).append(number)
        for numbers in groups.values():
            own = [ids[n] for n in numbers]
            length = min(common_length(own), min(map(len, own)) - 1)
            if len(numbers) > 1 and length >= _MIN_SHARED:
                for n in numbers:
                    begun[n] = length
        return begun

    # ------------------------------------------------------------------ hosts that read images

    def _with_images(self, rows: Sequence[_Row]) -> list[tuple[list[int], Tensor]]:
        groups: dict[Any, list[int]] = {}
        for number, row in enumerate(rows):
            shares = self.share and self.placement == "append" and len(row.picks) > 1
            groups.setdefault((row.query, row.picks[:-1]) if shares else None, []).append(number)
        whole = groups.pop(None, [])
        parts = []
        for numbers in groups.values():
            shared = self._shared([rows[n] for n in numbers]) if len(numbers) > 1 else None
            if shared is None:
                whole += numbers
                continue
            parts += [([numbers[n] for n in places], values) for places, values in shared]
        if whole:
            found = self._whole([rows[n] for n in whole])
            parts += [([whole[n] for n in places], values) for places, values in found]
        return parts

    def _whole(self, rows: Sequence[_Row]) -> list[tuple[list[int], Tensor]]:
        """Scores of prompts with images; the length of one stands for all."""
        reader = self.reader
        longest = max(rows, key=lambda row: (len(row.shots), len(row.turn.question)))
        length = reader.encode([longest.shots], [longest.turn])["input_ids"].shape[1]

        def run(numbers: list[int]) -> Tensor:
            inputs = reader.encode(
                [rows[n].shots for n in numbers], [rows[n].turn for n in numbers]
            )
            return span_logprobs(reader.model, inputs, [rows[n].span for n in numbers])

        return self.batches.run([length + len(row.span) for row in rows], run)

    @torch.no_grad()
    def _shared(self, rows: Sequence[_Row]) -> list[tuple[list[int], Tensor]] | None:
        """Scores with a shared cache of all picks but the last; None if the host cannot share."""
        reader, query = self.reader, rows[0].turn
        if not has_plain_cache(reader.model):
            return None
        prefix, candidates = rows[0].shots[:-1], [row.shots[-1] for row in rows]
        opening = write_opening(reader.processor, prefix, reader.instruction)
        prompts = [reader.prompt(row.shots, query) for row in rows]
        if not all(prompt.startswith(opening) for prompt in prompts):
            return None
        rests = [prompt.removeprefix(opening) for prompt in prompts]
        first = reader.encode_prompts([opening], [prefix])
        whole = reader.encode([rows[0].shots], [query])
        rest = reader.encode_prompts(rests[:1], [[candidates[0], query]], begins=False)
        split = torch.cat([first["input_ids"], rest["input_ids"]], 1)
        if not torch.equal(split, whole["input_ids"]):
            return None
        model: Any = reader.model
        filled = model(**first, use_cache=True, logits_to_keep=1).past_key_values

        def run(numbers: list[int]) -> Tensor:
            turns = [[candidates[n], query] for n in numbers]
            inputs = reader.encode_prompts([rests[n] for n in numbers], turns, begins=False)
            cache = continued(filled, torch.zeros_like(inputs["input_ids"][:, 0]))
            return span_logprobs(model, inputs, [rows[n].span for n in numbers], cache)

        length = whole["input_ids"].shape[1] + len(rows[0].span)
        return self.batches.run([length] * len(rows), run)

    def _most_rows(self, rows: Sequence[_Row]) -> int:
        """How many rows a batch may have, by the size of the answers' logits."""
        kept = max((len(row.span) for row in rows), default=0) + 1
        model: Any = self.reader.model
        return max(1, _MAX_LOGITS // (kept * model.config.get_text_config().vocab_size))
