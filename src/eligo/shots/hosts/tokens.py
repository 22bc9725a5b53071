"""Token ids of prompts of a host that reads text only.

A prompt of a chat template is usually a concatenation: an opening with the first example, the other
examples, the question. Where the tokenizer also splits there, every part is rendered and tokenized
once, and a prompt is put together from the ids of its parts. Otherwise whole prompts are tokenized.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eligo.pretrained.chat import tokenize
from eligo.shots.hosts.prompt import Turn, write_opening, write_prompt

Ids = np.ndarray[Any, np.dtype[np.int64]]
_CACHED = 1 << 16
_PROBES = (Turn("one?", "two"), Turn("Three four?", "5"), Turn("six", "Seven."), Turn("8?", "9"))


class PromptTokens:
    """Writes and tokenizes prompts."""

    def __init__(self, tokenizer: Any, instruction: str = "") -> None:
        self.tokenizer, self.instruction = tokenizer, instruction
        self._part = lru_cache(_CACHED)(self._read_part)
        self._is_split: bool | None = None

    def ids(self, prompts: Sequence[tuple[Sequence[Turn], Turn]]) -> list[Ids]:
        """Return the ids of each prompt, of examples in order and a question."""
        if self._is_split is None:
            self._is_split = self._splits()
        if self._is_split:
            return [self._joined(*prompt) for prompt in prompts]
        return self._tokenized([self._written(*prompt) for prompt in prompts])

    def _joined(self, shots: Sequence[Turn], query: Turn) -> Ids:
        parts = [self._part(shot, False, place == 0) for place, shot in enumerate(shots)]
        return np.concatenate([*parts, self._part(query, True, not shots)])

    def _read_part(self, turn: Turn, is_query: bool, is_first: bool) -> Ids:
        return self._tokenized([self._text(turn, is_query, is_first)])[0]

    def _text(self, turn: Turn, is_query: bool, is_first: bool) -> str:
        """The text that a turn adds to a prompt."""
        before = [] if is_first else [_PROBES[0]]
        opening = "" if is_first else self._opening(before)
        whole = self._written(before, turn) if is_query else self._opening([*before, turn])
        return whole.removeprefix(opening)

    def _splits(self) -> bool:
        """Whether prompts are concatenations, in text and in tokens.

        Parts must begin with a control token: the tokenizer then reads both sides apart.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            return False
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        *shots, query = _PROBES
        for part in (self._part(shots[1], False, False), self._part(query, True, False)):
            token = added.get(int(part[0])) if len(part) else None
            if token is None or token.normalized or token.lstrip or token.single_word:
                return False
        return all(
            self._joined(shots[:count], query).tolist()
            == self._tokenized([self._written(shots[:count], query)])[0].tolist()
            for count in range(len(_PROBES))
        )

    def _opening(self, shots: Sequence[Turn]) -> str:
        return write_opening(self.tokenizer, shots, self.instruction)

    def _written(self, shots: Sequence[Turn], query: Turn) -> str:
        return write_prompt(self.tokenizer, shots, query, self.instruction)

    def _tokenized(self, texts: list[str]) -> list[Ids]:
        # A chat template writes the special tokens itself.
        special = not getattr(self.tokenizer, "chat_template", None)
        encoded = tokenize(
            self.tokenizer, texts, add_special_tokens=special, return_attention_mask=False,
            return_token_type_ids=False,
        )  # fmt: skip
        return [np.asarray(row, dtype=np.int64) for row in encoded["input_ids"]]


def common_length(rows: Sequence[Ids]) -> int:
    """Return how many first ids all rows have in common.

    >>> common_length([np.array([1, 2, 3]), np.array([1, 2]), np.array([1, 2, 4])])
    2
    """
    length = min(map(len, rows))
    for row in rows[1:]:
        different = np.flatnonzero(row[:length] != rows[0][:length])
        length = int(different[0]) if len(different) else length
    return length


def padded(
    rows: Sequence[Ids], pad: int, device: torch.device, *, left: bool = True
) -> tuple[Tensor, Tensor]:
    """Return ids of equal length, and the mask of those that are real, on the device."""
    width = max(map(len, rows))
    table = np.full((len(rows), width), pad, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        table[number, place], mask[number, place] = row, 1
    return sent(torch.from_numpy(table), device), sent(torch.from_numpy(mask), device)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on the device; a GPU does not have to finish its work first."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
