"""A host with its processor: encodes batches of prompts with their images."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.images import open_image, side_of
from eligo.pretrained.chat import ContextWatch, tokenize
from eligo.shots.hosts.prompt import Turn, reads_images, tokenizer_of, write_prompt
from eligo.shots.hosts.tokens import Ids, PromptTokens

_CACHED_IMAGES = 256  # a query's candidates are used many times
_CACHED_LARGE = 32  # for a host that does not resize images to a fixed size


class Reader:
    """A frozen model with its processor, and how prompts are written for it."""

    def __init__(self, model: Any, processor: Any, instruction: str = "") -> None:
        self.model: nn.Module = model.eval()
        self.processor, self.instruction = processor, instruction
        self.tokenizer = tokenizer_of(processor)
        self.tokenizer.padding_side = "left"
        side = side_of(processor)
        cached = _CACHED_IMAGES if side is not None else _CACHED_LARGE
        self._open = lru_cache(cached)(partial(open_image, side=side))
        self._context = ContextWatch(model)
        self._tokens = PromptTokens(self.tokenizer, instruction)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def prompt(self, shots: Sequence[Turn], query: Turn) -> str:
        """Return the text of a prompt."""
        return write_prompt(self.processor, shots, query, self.instruction)

    @property
    def reads_images(self) -> bool:
        """Whether it is a vision-language model."""
        return reads_images(self.processor)

    def prompt_ids(self, shots: Sequence[Sequence[Turn]], queries: Sequence[Turn]) -> list[Ids]:
        """Return the token ids of each question with its examples, for a host that reads text."""
        pairs = list(zip(shots, queries, strict=True))
        if any(turn.image is not None for before, query in pairs for turn in (*before, query)):
            raise self._no_images()
        ids = self._tokens.ids(pairs)
        self._context.look(max(map(len, ids), default=0))
        return ids

    def encode(self, shots: Sequence[Sequence[Turn]], queries: Sequence[Turn]) -> dict[str, Tensor]:
        """Encode each question with its examples, padded on the left, on the model's device."""
        prompts = [self.prompt(*pair) for pair in zip(shots, queries, strict=True)]
        turns = [[*before, turn] for before, turn in zip(shots, queries, strict=True)]
        return self.encode_prompts(prompts, turns)

    def encode_prompts(
        self, prompts: Sequence[str], turns: Sequence[Sequence[Turn]], *, begins: bool = True
    ) -> dict[str, Tensor]:
        """Encode texts with the images of these turns; `begins`: texts start a prompt."""
        images = [[t.image for t in row if t.image is not None] for row in turns]
        texts: dict[str, Any] = {"text": list(prompts), "padding": True, "return_tensors": "pt"}
        if not begins:
            texts["add_special_tokens"] = False
        if not reads_images(self.processor):
            if any(images):
                raise self._no_images()
            # A chat template writes the special tokens itself.
            if getattr(self.processor, "chat_template", None):
                texts["add_special_tokens"] = False
            encoded = tokenize(self.tokenizer, **texts)
        elif any(images):
            opened = [[self._open(path) for path in row] for row in images]
            encoded = tokenize(self.processor, images=opened, **texts)
        else:
            encoded = tokenize(self.processor, **texts)
        self._context.look(int(encoded["attention_mask"].sum(1).max()))
        dtype = next(p.dtype for p in self.model.parameters() if p.is_floating_point())
        return {
            name: value.to(self.device, dtype if value.is_floating_point() else None)
            for name, value in encoded.items()
            if isinstance(value, Tensor)
        }

    def _no_images(self) -> InputError:
        return InputError(
            f"{type(self.model).__name__} reads text only, but examples have images; give a "
            "vision-language model"
        )
