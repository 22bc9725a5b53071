"""Signals for every step from an example to an answer; used in training only. Section 6.

A learner that is told nothing but answers learns plain words and stays at chance on nonce words:
nothing makes an example's word read its own image. So each step has a signal of its own:

    seen      ASSISTANT: of an example knows what its question asks for, in any words
    bound     its word, the next token, takes that over as its meaning
    pointed   a head looks from a question's word to the same word in an example
    looked    ... and takes over its meaning
    found     the question mark knows the object that has both meanings

All but `pointed` are linear read-outs of a state on the way up, thrown away afterwards; `pointed`
is the logits of one attention head, as the model itself computes them. Why it is needed: once the
state of a word carries a meaning, the word itself is a small part of it. The head that would have
to tell words apart then stays with "any example of that attribute", right in every second case: on
exact features, for 1,500 steps of 32 lessons (`lookup` 0.58), after which we did not wait. With
this signal it told them apart after 400 (0.84), and nonce questions were answered after 800 (0.88).
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from eligo.demos.exam.batch import Batch
from eligo.demos.exam.lessons import NUM_VALUES, QUESTIONS, Lessons
from eligo.demos.exam.packing import Packed
from eligo.scenes import words

_SEEN, _BOUND, _LOOKED, _FOUND = 2 / 8, 3 / 8, 5 / 8, 7 / 8  # depths at which states are read
_HEAD = 0
"""Which head points, in the layer that comes next after words are bound."""
_NEVER = -1e4


class WordHeads(nn.Module):
    """What a state says about values, one head for each linear read-out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.seen, self.bound, self.looked, self.found = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_VALUES)) for _ in range(4)
        )


class Read(NamedTuple):
    """All read-outs of a batch."""

    seen: Float[Tensor, "lessons 4 values"]
    bound: Float[Tensor, "lessons 4 values"]
    pointed: Float[Tensor, "lessons 8 2 examples"]
    """Logits of the examples' words, for each word of a question."""
    same: Bool[Tensor, "lessons 8 2 examples"]
    """Which of them is the same word."""
    looked: Float[Tensor, "lessons 8 2 values"]
    found: Float[Tensor, "lessons 8 values"]


def read_out(
    heads: WordHeads, language_model: Any, states: tuple[Tensor, ...], packed: Packed
) -> Read:
    """From the states before every layer, and after the last."""

    def at(depth: float, places: Tensor) -> Tensor:
        return gather(states[_layer(depth, states)], places).float()

    names = packed.name_places.flatten(1)
    said, told = (packed.tokens.gather(1, places) for places in (names, packed.word_places))
    layer = _layer(_BOUND, states)
    pointed = head_logits(language_model, layer, states[layer], packed, names)
    by_word = (QUESTIONS, 2)
    return Read(
        seen=heads.seen(at(_SEEN, packed.word_places - 1)),
        bound=heads.bound(at(_BOUND, packed.word_places)),
        pointed=pointed.unflatten(1, by_word),
        same=(said[..., None] == told[:, None]).unflatten(1, by_word),
        looked=heads.looked(at(_LOOKED, names)).unflatten(1, by_word),
        found=heads.found(at(_FOUND, packed.ask_places - 1)),
    )


def head_logits(
    language_model: Any,
    layer: int,
    states: Float[Tensor, "lessons length width"],
    packed: Packed,
    names: Tensor,
) -> Float[Tensor, "lessons names examples"]:
    """Before the softmax: how much one head of a layer looks from names to examples' words."""
    block = language_model.layers[layer]
    attention, entered = block.self_attn, block.input_layernorm(states)
    turns = language_model.rotary_emb(entered, packed.positions)

    def projected(linear: nn.Module, places: Tensor) -> Tensor:
        heads = linear(gather(entered, places)).unflatten(-1, (-1, attention.head_dim))
        cos, sin = (gather(turn, places) for turn in turns)
        one = heads[:, :, _HEAD].unsqueeze(1)  # (lessons, 1, places, dim)
        return apply_rotary_pos_emb(one, one, cos, sin)[0].squeeze(1).float()

    queries, keys = (
        projected(attention.q_proj, names), projected(attention.k_proj, packed.word_places)
    )  # fmt: skip
    return queries @ keys.transpose(1, 2) * attention.scaling


def word_losses(read: Read, batch: Batch) -> dict[str, Tensor]:
    """A loss for each signal, over what can be known."""
    lessons, meanings = batch.lessons, batch.meanings()
    known = (meanings.tellable | lessons.plain[:, None, None]).all(-1) & lessons.valid
    logits, place, there = _pointing(read, batch)
    return {
        "seen": mean_loss(read.seen, lessons.demo_value, batch.told),
        "bound": mean_loss(read.bound, lessons.demo_value, batch.told),
        "pointed": mean_loss(logits, place, there),
        "looked": mean_loss(read.looked, meanings.values, meanings.tellable),
        "found": torch.stack(
            [
                mean_loss(part, lessons.meant[..., attribute], known)
                for attribute, part in enumerate(_by_attribute(read.found))
            ]
        ).mean(),
    }


def word_metrics(read: Read, batch: Batch) -> dict[str, Tensor]:
    """Shares of what is right, on nonce words: plain ones tell their meaning themselves."""
    lessons, meanings = batch.lessons, batch.meanings()
    nonce = ~lessons.plain[:, None]
    logits, place, there = _pointing(read, batch)
    return {
        "seen": share(read.seen.argmax(-1) == lessons.demo_value, batch.told & nonce),
        "binding": share(read.bound.argmax(-1) == lessons.demo_value, batch.told & nonce),
        "pointing": share(logits.argmax(-1) == place, there & nonce[..., None]),
        "lookup": share(
            read.looked.argmax(-1) == meanings.values, meanings.tellable & nonce[..., None]
        ),
        "found": share(_is_found(read.found, lessons), batch.decided() & nonce),
    }


def _pointing(read: Read, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the shown examples, which of them has the word, and whether one has."""
    shown = batch.shown[:, None, None]
    same = read.same & shown
    logits = read.pointed.masked_fill(~shown, _NEVER)
    return logits, same.to(torch.uint8).argmax(-1), same.any(-1)


def _by_attribute(logits: Tensor) -> tuple[Tensor, ...]:
    return logits.split([len(values) for values in words.VALUES], -1)


def _is_found(logits: Tensor, lessons: Lessons) -> Tensor:
    best = torch.stack([part.argmax(-1) for part in _by_attribute(logits)], -1)
    return (best == lessons.meant).all(-1)


def _layer(depth: float, states: tuple[Tensor, ...]) -> int:
    return round(depth * (len(states) - 1))


def gather(states: Tensor, places: Tensor) -> Tensor:
    """The states at some places of each row."""
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))


def mean_loss(logits: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Mean over what the mask marks; 0 where it marks nothing."""
    target = torch.where(mask, wanted, -100).flatten()
    total = F.cross_entropy(logits.flatten(0, -2), target, ignore_index=-100, reduction="sum")
    return total / mask.sum().clamp(min=1)


def share(right: Tensor, counted: Tensor) -> Tensor:
    """How much of what counts is right."""
    return ((right & counted).sum() / counted.sum().clamp(min=1)).detach()
