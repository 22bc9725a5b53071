"""What a host answers behind given examples: greedy, a few tokens."""

from collections.abc import Sequence
from typing import Any

import torch

from eligo.config.bounds import check_count
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.scorer import Placement, in_prompt_order, turn_of
from eligo.shots.pool.pool import Pool


class HostGenerator:
    """Answers by a host: `generator.answer("query", ["demo 3", "demo 7"])`."""

    def __init__(
        self,
        reader: Reader,
        pool: Pool,
        queries: Pool,
        *,
        placement: Placement = "prepend",
        batch_size: int = 16,
        max_new_tokens: int = 10,
    ) -> None:
        self.reader, self.batch_size = reader, check_count("batch_size", batch_size)
        check_count("max_new_tokens", max_new_tokens)
        self.placement: Placement = placement
        self.pool, self.queries, self.max_new_tokens = pool, queries, max_new_tokens

    def answer(self, query: str, picks: Sequence[str]) -> str:
        """The answer to one query behind these examples (in order of choice)."""
        return self.answers([query], [picks])[0]

    @torch.no_grad()
    def answers(self, queries: Sequence[str], picks: Sequence[Sequence[str]]) -> list[str]:
        """The answers to several, each behind its own examples."""
        said: list[str] = []
        for start in range(0, len(queries), self.batch_size):
            asked = [turn_of(self.queries, name) for name in queries[start:][: self.batch_size]]
            shots = [
                [turn_of(self.pool, name) for name in in_prompt_order(names, self.placement)]
                for names in picks[start : start + self.batch_size]
            ]
            inputs = self.reader.encode(shots, asked)
            model: Any = self.reader.model
            made = model.generate(
                **inputs,
                # A host may come with settings of its own: a penalty on what the prompt holds
                # would speak against the very answers that examples show.
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.reader.tokenizer.pad_token_id,
            )
            new = made[:, inputs["input_ids"].shape[1] :]
            decoded = self.reader.tokenizer.batch_decode(new, skip_special_tokens=True)
            said += [" ".join(text.split()) for text in decoded]
        return said
