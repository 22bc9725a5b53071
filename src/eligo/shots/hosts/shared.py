"""What all candidates have before them is read once: `append` shares a cache. Section 2, Order.

With the first pick first, prompts of one step differ only behind the picks so far. Those are read
once, their keys and values are kept, and each candidate goes on from there. Nothing is assumed of a
host: if its tokens do not split at that place, or it counts positions by itself (Qwen2.5-VL: in
three dimensions), every prompt is read whole.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from eligo.shots.hosts.prompt import Turn, write_opening
from eligo.shots.hosts.reader import Reader
from eligo.shots.hosts.scorer import finds_positions, span_logprobs


@torch.no_grad()
def shared_logprobs(
    reader: Reader,
    told: Sequence[Turn],
    candidates: Sequence[Turn],
    asked: Turn,
    span: Sequence[int],
    batch_size: int,
) -> Float[Tensor, " candidates"] | None:
    """Of the answer behind `told` and each candidate; None where the host cannot share."""
    if finds_positions(reader.model):
        return None
    opening = write_opening(reader.processor, told, reader.instruction)
    prompts = [reader.prompt([*told, candidate], asked) for candidate in candidates]
    if not all(prompt.startswith(opening) for prompt in prompts):
        return None
    rests = [prompt[len(opening) :] for prompt in prompts]
    first = reader.encode_prompts([opening], [told])
    if not _splits(reader, first, rests[0], [*told, candidates[0]], asked):
        return None
    cache = reader.model(**first, use_cache=True, logits_to_keep=1).past_key_values
    parts = []
    for start in range(0, len(rests), batch_size):
        some = slice(start, start + batch_size)
        turns = [[candidate, asked] for candidate in candidates[some]]
        inputs = reader.encode_prompts(rests[some], turns, begins=False)
        parts.append(span_logprobs(reader.model, inputs, span, _copies(cache, len(turns))))
    return torch.cat(parts)


def _splits(
    reader: Reader, first: dict[str, Tensor], rest: str, shots: Sequence[Turn], asked: Turn
) -> bool:
    """Whether both parts of a prompt, one behind the other, are the tokens of the whole."""
    whole = reader.encode([shots], [asked])["input_ids"][0].tolist()
    second = reader.encode_prompts([rest], [[shots[-1], asked]], begins=False)["input_ids"][0]
    return [*first["input_ids"][0].tolist(), *second.tolist()] == whole


def _copies(cache: Any, count: int) -> Any:
    """The same beginning for `count` rows; a model appends to what it is given."""
    copied = deepcopy(cache)
    copied.batch_repeat_interleave(count)
    return copied
