"""How likely a host finds the right answer behind given examples. Section 5, Answer span.

All rows of a call ask the same question, so they end in the same answer: prompts are padded on the
left, the answer's tokens are appended to every row, and exactly those are scored.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.hosts.prompt import Turn, answer_span
from eligo.shots.hosts.reader import Reader
from eligo.shots.pool.pool import Pool

Placement = Literal["prepend", "append"]
_TYPES = ("mm_token_type_ids", "token_type_ids")  # of tokens: 0 is text


class Scores(NamedTuple):
    """Of the same answer behind different examples."""

    logprob: Float[Tensor, " candidates"]
    """Sum over the answer's tokens; float32, on the CPU."""
    num_tokens: int


@runtime_checkable
class Scorer(Protocol):
    """What a teacher asks."""

    def baseline(self, query: Query) -> Scores:
        """Without any example; one value."""
        ...

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """`(*prefix, c)`, in order of choice, for each candidate c."""
        ...


def in_prompt_order(picks: Sequence[Any], placement: Placement) -> list[Any]:
    """From order of choice to order in the prompt.

    >>> in_prompt_order(["first", "second"], "prepend")  # the first pick is next to the question
    ['second', 'first']
    """
    return list(picks) if placement == "append" else list(reversed(picks))


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
        """`share`: what candidates have in common is read once, where placement and host allow."""
        self.reader, self.batch_size, self.share = reader, batch_size, share
        self.placement: Placement = placement
        self.pool, self.queries = pool, queries

    def baseline(self, query: Query) -> Scores:
        """Without any example; one value."""
        return self._scored(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """`(*prefix, c)`, in order of choice, for each candidate c."""
        if self.share and self.placement == "append" and prefix and len(candidates) > 1:
            shared = self._shared(query, prefix, candidates)
            if shared is not None:
                return shared
        return self._scored(query, [(*prefix, name) for name in candidates])

    def _shared(
        self, query: Query, prefix: Sequence[str], candidates: Sequence[str]
    ) -> Scores | None:
        from eligo.shots.hosts.shared import shared_logprobs

        asked = turn_of(self.queries, query.id)
        span = answer_span(self.reader.processor, self.reader.prompt([], asked), asked.answer)
        told, tried = ([turn_of(self.pool, name) for name in part] for part in (prefix, candidates))
        found = shared_logprobs(self.reader, told, tried, asked, span, self.batch_size)
        return None if found is None else Scores(found, len(span))

    def _scored(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        asked = turn_of(self.queries, query.id)
        span = answer_span(self.reader.processor, self.reader.prompt([], asked), asked.answer)
        parts = []
        for start in range(0, len(lists), self.batch_size):
            shots = [
                [turn_of(self.pool, name) for name in in_prompt_order(names, self.placement)]
                for names in lists[start : start + self.batch_size]
            ]
            inputs = self.reader.encode(shots, [asked] * len(shots))
            parts.append(span_logprobs(self.reader.model, inputs, span))
        return Scores(torch.cat(parts), len(span))


@torch.no_grad()
def span_logprobs(
    model: Any, inputs: dict[str, Tensor], span: Sequence[int], cache: Any = None
) -> Float[Tensor, " rows"]:
    """Log-probability of the same tokens behind every row of left-padded prompts.

    `cache`: of a beginning that was read before, the same for all rows.
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
    if not finds_positions(model):
        whole["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -new:]
    if cache is not None:
        whole["past_key_values"] = cache
    # One more than the span: the last of them predicts what comes behind it.
    kept = {"use_cache": cache is not None, "logits_to_keep": len(span) + 1}
    logits = model(**whole, **kept).logits[:, :-1]
    logprobs = logits.float().log_softmax(-1).gather(2, answer.unsqueeze(-1))
    return logprobs.squeeze(-1).sum(1).cpu()


def turn_of(pool: Pool, name: str) -> Turn:
    """What an example says."""
    row = int(pool.rows([name])[0])
    return Turn.of(None if pool.payload is None else pool.payload[row], f"example {name!r}")


def finds_positions(model: Any) -> bool:
    """Whether it counts positions from the mask itself (Qwen2.5-VL: in three dimensions)."""
    return hasattr(model, "get_rope_index") or hasattr(
        getattr(model, "model", None), "get_rope_index"
    )
