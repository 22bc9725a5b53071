"""Log-probability of the correct answer after given examples, by a host.

All rows of a call have the same question, so they end in the same answer: prompts are padded on the
left, the answer's tokens are appended to every row, and exactly those are scored.

With placement `append`, the prompts of one step differ only after the picks so far. These are read
once, and each candidate continues from their cached keys and values. If the tokens do not split
there, or the host computes positions itself (like Qwen2.5-VL), every prompt is read whole.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.hosts.prompt import (
    Placement,
    Turn,
    answer_span,
    in_prompt_order,
    turn_of,
    write_opening,
)
from eligo.shots.hosts.reader import Reader
from eligo.shots.pool.pool import Pool

_TYPES = ("mm_token_type_ids", "token_type_ids")  # 0 is text


class Scores(NamedTuple):
    """Scores of one answer after different examples."""

    logprob: Float[Tensor, " candidates"]
    """Sum over the answer's tokens; float32, on the CPU."""
    num_tokens: int


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


class HostScorer:
    """Log-probabilities of the queries' answers, by a host."""

    def __init__(
        self,
        reader: Reader,
        pool: Pool,
        queries: Pool,
        *,
        placement: Placement = "prepend",
        batch_size: int = 16,
        share: bool = True,
    ) -> None:
        """`share`: read the prompts' common prefix once, if placement and host allow it."""
        self.reader, self.batch_size, self.share = reader, batch_size, share
        self.placement: Placement = placement
        self.pool, self.queries = pool, queries

    def baseline(self, query: Query) -> Scores:
        """Score the answer without any example."""
        return self.score_lists(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """Score the examples `(*prefix, c)`, in order of choice, for each candidate c."""
        if self.share and self.placement == "append" and prefix and len(candidates) > 1:
            turn, span = self._query(query)
            logprob = self._shared(turn, span, self._turns(prefix), self._turns(candidates))
            if logprob is not None:
                return Scores(logprob, len(span))
        return self.score_lists(query, [(*prefix, name) for name in candidates])

    def _query(self, query: Query) -> tuple[Turn, list[int]]:
        """The turn of a query, and the tokens of its answer."""
        turn = turn_of(self.queries, query.id)
        return turn, answer_span(self.reader.processor, self.reader.prompt([], turn), turn.answer)

    def _turns(self, names: Sequence[str]) -> list[Turn]:
        return [turn_of(self.pool, name) for name in names]

    def score_lists(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        """Score whole lists of examples, in order of choice."""
        turn, span = self._query(query)
        parts = []
        for start in range(0, len(lists), self.batch_size):
            shots = [
                self._turns(in_prompt_order(names, self.placement))
                for names in lists[start : start + self.batch_size]
            ]
            inputs = self.reader.encode(shots, [turn] * len(shots))
            parts.append(span_logprobs(self.reader.model, inputs, span))
        return Scores(torch.cat(parts), len(span))

    @torch.no_grad()
    def _shared(
        self, query: Turn, span: Sequence[int], prefix: Sequence[Turn], candidates: Sequence[Turn]
    ) -> Float[Tensor, " candidates"] | None:
        """Scores with a shared cache of the prefix; None if the host cannot share."""
        reader = self.reader
        if computes_positions(reader.model):
            return None
        opening = write_opening(reader.processor, prefix, reader.instruction)
        prompts = [reader.prompt([*prefix, candidate], query) for candidate in candidates]
        if not all(prompt.startswith(opening) for prompt in prompts):
            return None
        rests = [prompt.removeprefix(opening) for prompt in prompts]
        first = reader.encode_prompts([opening], [prefix])
        whole = reader.encode([[*prefix, candidates[0]]], [query])
        rest = reader.encode_prompts(rests[:1], [[candidates[0], query]], begins=False)
        split = torch.cat([first["input_ids"], rest["input_ids"]], 1)
        if not torch.equal(split, whole["input_ids"]):
            return None
        model: Any = reader.model
        cache = model(**first, use_cache=True, logits_to_keep=1).past_key_values
        parts = []
        for start in range(0, len(rests), self.batch_size):
            batch = slice(start, start + self.batch_size)
            turns = [[candidate, query] for candidate in candidates[batch]]
            inputs = reader.encode_prompts(rests[batch], turns, begins=False)
            copied = deepcopy(cache)  # the model appends to it
            copied.batch_repeat_interleave(len(turns))
            parts.append(span_logprobs(model, inputs, span, copied))
        return torch.cat(parts)


@torch.no_grad()
def span_logprobs(
    model: Any, inputs: dict[str, Tensor], span: Sequence[int], cache: Any = None
) -> Float[Tensor, " rows"]:
    """Log-probability of the same tokens after every row of left-padded prompts.

    `cache`: keys and values of a common beginning, repeated for all rows.
    """
    ids = inputs["input_ids"]
    answer = torch.tensor(list(span), device=ids.device).expand(len(ids), -1)
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(answer)], 1)
    new = mask.shape[1]
    if cache is not None:
        mask = torch.cat([mask.new_ones(len(ids), cache.get_seq_length()), mask], 1)
    whole = {**inputs, "input_ids": torch.cat([ids, answer], 1), "attention_mask": mask}
    for name in _TYPES:
        if name in inputs:
            whole[name] = torch.cat([inputs[name], torch.zeros_like(answer)], 1)
    if not computes_positions(model):
        whole["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -new:]
    if cache is not None:
        whole["past_key_values"] = cache
    kept = len(span) + 1  # the last one predicts the token after the span
    logits = model(**whole, use_cache=cache is not None, logits_to_keep=kept).logits[:, :-1]
    logprobs = logits.float().log_softmax(-1).gather(2, answer.unsqueeze(-1))
    return logprobs.squeeze(-1).sum(1).cpu()


def computes_positions(model: Any) -> bool:
    """Whether the model computes positions from the mask (Qwen2.5-VL: in three dimensions)."""
    return hasattr(model, "get_rope_index") or hasattr(
        getattr(model, "model", None), "get_rope_index"
    )
