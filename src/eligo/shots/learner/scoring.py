"""Thousands of prompts at a time: how likely the learner finds each answer. Section 6.

A prompt is `<s>`, examples, a query: blocks whose vectors were looked up once (`world`). Prompts of
one length go through the language model together, so there is no padding and no mask, and attention
takes its fastest path. The same numbers as from `HostScorer`, which writes text and opens images.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.hosts.scorer import Placement, Scores
from eligo.shots.learner.world import ExamWorld

_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 13}


class Answers(NamedTuple):
    """What came of some prompts; on the CPU."""

    logprob: Float[Tensor, " prompts"]
    """Of the right answer."""
    right: Bool[Tensor, " prompts"]
    """Whether it was the likeliest."""
    said: Int64[Tensor, " prompts"]
    """Token of the likeliest."""


class LearnerScorer:
    """Log-probabilities of the answers, by a learner on its own world."""

    def __init__(
        self,
        model: Any,
        world: ExamWorld,
        *,
        placement: Placement = "prepend",
        tokens: int | None = None,
    ) -> None:
        """`tokens`: most that go through the model at a time; in bfloat16 on a GPU."""
        self.model, self.world = model, world
        self.placement: Placement = placement
        self.device = world.blocks.starts.device
        self.tokens = tokens or _TOKENS.get(self.device.type, _TOKENS["cpu"])

    def baseline(self, query: Query) -> Scores:
        """Without any example; one value."""
        return self._scored(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """`(*prefix, c)`, in order of choice, for each candidate c."""
        return self._scored(query, [(*prefix, name) for name in candidates])

    def _scored(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        row = self.world.queries.rows([query.id]).expand(len(lists))
        picks = torch.stack([self.world.pool.rows(names) for names in lists])
        return Scores(self.answers(row, picks).logprob, 1)

    @torch.no_grad()
    def answers(
        self, queries: Int64[Tensor, " prompts"], picks: Int64[Tensor, "prompts shots"]
    ) -> Answers:
        """Queries (rows of the world's) behind examples (rows of its pool, in order of choice; -1:
        none)."""
        blocks = self._blocks(queries, picks)
        lengths = self.world.blocks.lengths.to(blocks.device)[blocks] * (blocks >= 0)
        total = lengths.sum(1)
        logprob = torch.empty(len(queries))
        said = torch.empty(len(queries), dtype=torch.int64)
        for length in total.unique().tolist():
            own = (total == length).nonzero().flatten()
            for part in own.split(max(1, self.tokens // length)):
                logits = self._logits(blocks[part].to(self.device), length).log_softmax(-1)
                wanted = self.world.answers[queries[part]].to(self.device)
                logprob[part] = logits.gather(1, wanted[:, None]).squeeze(1).cpu()
                said[part] = logits.argmax(-1).cpu()
        return Answers(logprob, said == self.world.answers[queries].cpu(), said)

    def _blocks(self, queries: Tensor, picks: Tensor) -> Int64[Tensor, "prompts blocks"]:
        """The blocks of each prompt, in their order; -1: none."""
        told = picks if self.placement == "append" else picks.flip(1)
        shots = torch.where(told >= 0, told + 1, -1)
        last = queries + 1 + len(self.world.pool)
        return torch.cat([torch.zeros_like(last)[:, None], shots, last[:, None]], 1)

    def _logits(
        self, blocks: Int64[Tensor, "prompts blocks"], length: int
    ) -> Float[Tensor, "prompts tokens"]:
        """Of the answer's token behind prompts of this length."""
        table = self.world.blocks
        lengths = table.lengths[blocks] * (blocks >= 0)
        ends = lengths.cumsum(1)
        places = torch.arange(length, device=blocks.device).expand(len(blocks), -1).contiguous()
        number = torch.searchsorted(ends, places, right=True)  # which block a place lies in
        start = (table.starts[blocks] - (ends - lengths)).gather(1, number)
        vectors = table.vectors[table.rows[start + places]]
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            states = self.model.model.language_model(inputs_embeds=vectors, use_cache=False)
            return self.model.lm_head(states.last_hidden_state[:, -1]).float()
