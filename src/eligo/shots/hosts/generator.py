"""Answers of a host after given examples, by greedy decoding."""

from collections.abc import Sequence
from typing import Any

import torch

from eligo.config.bounds import check_count
from eligo.shots.hosts.prompt import Placement, in_prompt_order, turn_of
from eligo.shots.hosts.reader import Reader
from eligo.shots.pool.pool import Pool


class HostGenerator:
    """Answers queries with a host: `generator.answer("query", ["example 3", "example 7"])`."""

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
        """Answer one query after these examples (in order of choice)."""
        return self.answers([query], [picks])[0]

    @torch.no_grad()
    def answers(self, queries: Sequence[str], picks: Sequence[Sequence[str]]) -> list[str]:
        """Answer several queries, each after its own examples."""
        answers: list[str] = []
        model: Any = self.reader.model
        for start in range(0, len(queries), self.batch_size):
            batch = slice(start, start + self.batch_size)
            turns = [turn_of(self.queries, name) for name in queries[batch]]
            shots = [
                [turn_of(self.pool, name) for name in in_prompt_order(names, self.placement)]
                for names in picks[batch]
            ]
            inputs = self.reader.encode(shots, turns)
            output = model.generate(
                **inputs,
                # Override the host's own settings: a repetition penalty would work against the
                # answers in the examples.
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self.reader.tokenizer.pad_token_id,
            )
            new = output[:, inputs["input_ids"].shape[1] :]
            decoded = self.reader.tokenizer.batch_decode(new, skip_special_tokens=True)
            answers += [" ".join(text.split()) for text in decoded]
        return answers
