"""Answers of a host after given examples, by greedy decoding."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from eligo.config.bounds import check_count
from eligo.shots.hosts.batches import TokenBatches
from eligo.shots.hosts.prompt import Placement, Turn, in_prompt_order, turn_of
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.tokens import padded
from eligo.shots.pool.pool import Pool

_TOGETHER = 256


@runtime_checkable
class Generator(Protocol):
    """Answers queries after examples."""

    answers_together: int
    """About how many prompts to give it at once."""

    def answer(self, query: str, picks: Sequence[str]) -> str:
        """Answer one query after these examples (in order of choice)."""
        ...

    def answers(self, queries: Sequence[str], picks: Sequence[Sequence[str]]) -> list[str]:
        """Answer several queries, each after its own examples."""
        ...


class HostGenerator:
    """Answers queries with a host: `generator.answer("query", ["example 3", "example 7"])`."""

    def __init__(
        self,
        reader: Reader,
        pool: Pool,
        queries: Pool,
        *,
        placement: Placement = "prepend",
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        max_new_tokens: int = 10,
    ) -> None:
        for name, count in (("batch_size", batch_size), ("batch_tokens", batch_tokens)):
            if count is not None:
                check_count(name, count)
        check_count("max_new_tokens", max_new_tokens)
        self.reader, self.batches = reader, TokenBatches(reader.device, batch_tokens, batch_size)
        self.placement: Placement = placement
        self.pool, self.queries, self.max_new_tokens = pool, queries, max_new_tokens
        self.answers_together = max(_TOGETHER, self.batches.tokens // 32)  # prompts are longer

    def answer(self, query: str, picks: Sequence[str]) -> str:
        """Answer one query after these examples (in order of choice)."""
        return self.answers([query], [picks])[0]

    @torch.no_grad()
    def answers(self, queries: Sequence[str], picks: Sequence[Sequence[str]]) -> list[str]:
        """Answer several queries, each after its own examples."""
        turns = [turn_of(self.queries, name) for name in queries]
        shots = [
            [turn_of(self.pool, name) for name in in_prompt_order(names, self.placement)]
            for names in picks
        ]
        if not turns:
            return []
        found = self._with_images if self.reader.reads_images else self._texts
        answers = [""] * len(turns)
        for numbers, said in found(shots, turns):
            for number, text in zip(numbers, said, strict=True):
                answers[number] = text
        return answers

    def _texts(
        self, shots: Sequence[Sequence[Turn]], turns: Sequence[Turn]
    ) -> list[tuple[list[int], list[str]]]:
        ids = self.reader.prompt_ids(shots, turns)
        pad = int(self.reader.tokenizer.pad_token_id or 0)

        def run(numbers: list[int]) -> list[str]:
            rows, mask = padded([ids[n] for n in numbers], pad, self.reader.device)
            return self._generated({"input_ids": rows, "attention_mask": mask})

        return self.batches.run([len(row) + self.max_new_tokens for row in ids], run)

    def _with_images(
        self, shots: Sequence[Sequence[Turn]], turns: Sequence[Turn]
    ) -> list[tuple[list[int], list[str]]]:
        """The length of the prompt with the most examples stands for all."""
        longest = max(range(len(turns)), key=lambda n: (len(shots[n]), len(turns[n].question)))
        encoded = self.reader.encode([shots[longest]], [turns[longest]])
        length = encoded["input_ids"].shape[1] + self.max_new_tokens

        def run(numbers: list[int]) -> list[str]:
            inputs = self.reader.encode([shots[n] for n in numbers], [turns[n] for n in numbers])
            return self._generated(inputs)

        return self.batches.run([length] * len(turns), run)

    def _generated(self, inputs: dict[str, Tensor]) -> list[str]:
        model: Any = self.reader.model
        output = model.generate(
            **inputs,
            # Override the host's own settings: a repetition penalty would work against the answers
            # in the examples.
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,
            max_new_tokens=self.max_new_tokens,
            pad_token_id=self.reader.tokenizer.pad_token_id,
        )
        new = output[:, inputs["input_ids"].shape[1] :]
        decoded = self.reader.tokenizer.batch_decode(new, skip_special_tokens=True)
        return [" ".join(text.split()) for text in decoded]
