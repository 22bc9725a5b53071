"""Log-probabilities of the answers to thousands of prompts, by the learner.

A prompt is `<s>`, examples and a query: blocks whose vectors were computed once (`world`). Prompts
of one length run together, so there is neither padding nor mask. The numbers are those of
`HostScorer`, which writes text and opens images.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from eligo.shots.data.query import Query
from eligo.shots.hosts.scorer import Scores
from eligo.shots.learner.world import LearnerWorld

_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 13}


class Answers(NamedTuple):
    """Answers to prompts; on the CPU."""

    logprob: Float[Tensor, " prompts"]
    """Of the correct answer."""
    right: Bool[Tensor, " prompts"]
    """Whether the correct answer was the likeliest."""
    token: Int64[Tensor, " prompts"]
    """The likeliest answer."""


class LearnerScorer:
    """A `Scorer` for the queries of a `LearnerWorld`."""

    def __init__(self, model: Any, world: LearnerWorld, *, tokens: int | None = None) -> None:
        """`tokens`: maximum tokens per forward pass (bfloat16 on a GPU)."""
        self.model, self.world = model, world
        self.device = world.blocks.starts.device
        self.tokens = tokens or _TOKENS.get(self.device.type, _TOKENS["cpu"])

    def baseline(self, query: Query) -> Scores:
        """Score the answer without any example."""
        return self._scored(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """Score the examples `(*prefix, c)`, in order of choice, for each candidate c."""
        return self._scored(query, [(*prefix, name) for name in candidates])

    def _scored(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        row = self.world.queries.rows([query.id]).expand(len(lists))
        picks = torch.stack([self.world.pool.rows(names) for names in lists])
        return Scores(self.answers(row, picks).logprob, 1)

    @torch.no_grad()
    def answers(
        self, queries: Int64[Tensor, " prompts"], picks: Int64[Tensor, "prompts shots"]
    ) -> Answers:
        """Answer queries (rows) after examples (rows of the pool, in order of choice; -1: none)."""
        blocks = self._blocks(queries, picks)
        lengths = self.world.blocks.lengths.to(blocks.device)[blocks] * (blocks >= 0)
        total = lengths.sum(1)
        logprob = torch.empty(len(queries))
        token = torch.empty(len(queries), dtype=torch.int64)
        for length in total.unique().tolist():
            same_length = (total == length).nonzero().flatten()
            for part in same_length.split(max(1, self.tokens // length)):
                logits = self._logits(blocks[part].to(self.device), length).log_softmax(-1)
                correct = self.world.answers[queries[part]].to(self.device)
                logprob[part] = logits.gather(1, correct[:, None]).squeeze(1).cpu()
                token[part] = logits.argmax(-1).cpu()
        return Answers(logprob, token == self.world.answers[queries].cpu(), token)

    def _blocks(self, queries: Tensor, picks: Tensor) -> Int64[Tensor, "prompts blocks"]:
        """Blocks of each prompt, in order; -1: none."""
        ordered = picks.flip(1)  # the first pick is next to the question
        shots = torch.where(ordered >= 0, ordered + 1, -1)
        last = queries + 1 + len(self.world.pool)
        return torch.cat([torch.zeros_like(last)[:, None], shots, last[:, None]], 1)

    def _logits(
        self, blocks: Int64[Tensor, "prompts blocks"], length: int
    ) -> Float[Tensor, "prompts tokens"]:
        """Logits of the answer's token for prompts of this length."""
        table = self.world.blocks
        lengths = table.lengths[blocks] * (blocks >= 0)
        ends = lengths.cumsum(1)
        positions = torch.arange(length, device=blocks.device).expand(len(blocks), -1).contiguous()
        number = torch.searchsorted(ends, positions, right=True)  # block of each position
        start = (table.starts[blocks] - (ends - lengths)).gather(1, number)
        vectors = table.vectors[table.rows[start + positions]]
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda"):
            states = self.model.model.language_model(inputs_embeds=vectors, use_cache=False)
            return self.model.lm_head(states.last_hidden_state[:, -1]).float()
