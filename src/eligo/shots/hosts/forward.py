"""Forward passes of a host: log-probabilities of answers after prompts, padded on the left."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.shots.hosts.tokens import Ids, padded, sent

_TYPES = ("mm_token_type_ids", "token_type_ids")  # 0 is text


@torch.no_grad()
def span_logprobs(
    model: Any,
    inputs: dict[str, Tensor],
    spans: Sequence[Ids],
    cache: Any = None,
    cached_mask: Int64[Tensor, "rows cached"] | None = None,
) -> Float[Tensor, " rows"]:
    """Return the log-probability of each row's tokens (`spans`) after its prompt, on the device.

    `cache`: keys and values of the beginnings of the rows, with their mask.
    """
    ids = inputs["input_ids"]
    answer, real = padded(spans, 0, ids.device, left=False)
    mask = torch.cat([inputs["attention_mask"], real], 1)
    new = mask.shape[1]
    if cache is not None:
        begun = mask.new_ones(len(ids), cache.get_seq_length())
        mask = torch.cat([begun if cached_mask is None else cached_mask, mask], 1)
    whole = {**inputs, "input_ids": torch.cat([ids, answer], 1), "attention_mask": mask}
    for name in _TYPES:
        if name in inputs:
            whole[name] = torch.cat([inputs[name], torch.zeros_like(answer)], 1)
    if not computes_positions(model):
        whole["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -new:]
    if cache is not None:
        whole["past_key_values"] = cache
    kept = answer.shape[1] + 1  # the last one predicts the token after the span
    logits = model(**whole, use_cache=cache is not None, logits_to_keep=kept).logits[:, :-1]
    logprobs = logits.float().log_softmax(-1).gather(2, answer.unsqueeze(-1)).squeeze(-1)
    return torch.where(real.bool(), logprobs, 0.0).sum(1)


@torch.no_grad()
def read_beginnings(
    model: Any, rows: Sequence[Ids], pad: int, device: torch.device
) -> tuple[Any, Int64[Tensor, "rows cached"]]:
    """Return keys and values of the beginning of each row, and their mask; equal ones read once."""
    distinct = {row.tobytes(): row for row in rows}
    numbers = {key: number for number, key in enumerate(distinct)}
    ids, mask = padded(list(distinct.values()), pad, device)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
    )
    chosen = sent(torch.tensor([numbers[row.tobytes()] for row in rows]), device)
    return continued(output.past_key_values, chosen), mask[chosen]


def continued(filled: Any, index: Int64[Tensor, " rows"]) -> Any:
    """Return a cache for rows that continue the beginnings (by `index`) of a filled one."""
    from eligo.shots.hosts.shared_cache import shared

    return shared(filled, index)


def has_plain_cache(model: Any) -> bool:
    """Whether all layers cache the keys and values of all tokens, so that rows can share them."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    if computes_positions(model) or getattr(model, "_is_stateful", False):
        return False
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) is DynamicLayer for layer in layers)


def computes_positions(model: Any) -> bool:
    """Whether the model computes positions from the mask (Qwen2.5-VL: in three dimensions)."""
    return hasattr(model, "get_rope_index") or hasattr(
        getattr(model, "model", None), "get_rope_index"
    )
