"""Signals for every step from an example to an answer; used in training only. Section 6.

A learner that is told nothing but answers learns plain words and stays at chance on nonce words:
nothing makes an example's word read its own image. So each step has a signal of its own:

    aimed     a head looks from what names an object in an example's question to its patches
    named     ... and takes over all that they show
    seen      ASSISTANT: of an example knows what its question asks for, in any words
    bound     its word, the next token, takes that over as its meaning
    pointed   a head looks from a question's word to the same word in an example
    looked    ... and takes over its meaning
    gathered  a head looks from the question mark to both words of its question
    held      ... and takes over both meanings
    sought    a head looks from the question mark to the patches of the object with both meanings
    found     ... and takes over all that they show

Linear read-outs of a state on the way up, thrown away afterwards; but `aimed`, `pointed`,
`gathered` and `sought` are the logits of one attention head, as the model itself computes them. Why
those are needed: a state that knows which values an image shows, and not of which object, guesses
well and stays there for long; so does a word that knows which attribute it is of, and not which
value: once a state carries a meaning, the word itself is a small part of it. And a question mark
that learned from plain words gathers them in layers where a nonce word means nothing yet.
docs/shots_study.md has figures.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from eligo.scenes import words
from eligo.scenes.vlm_heads import PatchTargets
from eligo.shots.learner.batch import Batch, Meanings
from eligo.shots.learner.lessons import EXAMPLES, NUM_VALUES, QUESTIONS, Lessons
from eligo.shots.learner.packing import Packed

_NAMED, _SEEN, _BOUND, _LOOKED, _HELD, _FOUND = 1, 2, 3, 5, 6, 7
"""Layers behind which states are read; what is above them reads the answer off what was found."""
_LAYERS = 8
"""A model with fewer is read at the same depths of it."""
_HEAD = 0
"""Which head looks: for `pointed` in the layer behind `bound`, for the others in the layer before
what is taken over is read."""
_NEVER = -1e4


class WordHeads(nn.Module):
    """What a state says about values, one head for each linear read-out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.named, self.seen, self.bound, self.looked, self.held, self.found = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_VALUES)) for _ in range(6)
        )


class Read(NamedTuple):
    """All read-outs of a batch."""

    aimed: Float[Tensor, "lessons 4 patches"]
    """Logits of an example's patches, for what names an object in its question."""
    named: Float[Tensor, "lessons 4 values"]
    seen: Float[Tensor, "lessons 4 values"]
    bound: Float[Tensor, "lessons 4 values"]
    pointed: Float[Tensor, "lessons 8 2 examples"]
    """Logits of the examples' words, for each word of a question."""
    same: Bool[Tensor, "lessons 8 2 examples"]
    """Which of them is the same word."""
    looked: Float[Tensor, "lessons 8 2 values"]
    gathered: Float[Tensor, "lessons 8 2"]
    """Log share of all that a question mark looks at, for each word of its question."""
    held: Float[Tensor, "lessons 8 values"]
    sought: Float[Tensor, "lessons 8 patches"]
    """Logits of the patches of the question's image, for each question mark."""
    found: Float[Tensor, "lessons 8 values"]


def read_out(
    heads: WordHeads, language_model: Any, states: tuple[Tensor, ...], packed: Packed
) -> Read:
    """From what enters the first layer, and what leaves each."""

    def at(layer: int, places: Tensor) -> Tensor:
        return gather(states[_layer(layer, states)], places).float()

    def looks(layer: int, origin: Tensor, goal: Tensor) -> Tensor:
        return head_logits(language_model, layer, states[layer], packed, origin, goal)

    names = packed.name_places.flatten(1)
    said, told = (packed.tokens.gather(1, places) for places in (names, packed.word_places))
    marks = packed.ask_places - 1
    patches = looks(
        _layer(_NAMED, states) - 1, packed.noun_places, packed.example_patches.flatten(1)
    )
    pointed = looks(_layer(_BOUND, states), names, packed.word_places)
    by_word = (QUESTIONS, 2)
    return Read(
        # An example's noun looks at its own image only.
        aimed=patches.unflatten(2, (EXAMPLES, -1)).diagonal(dim1=1, dim2=2).transpose(1, 2),
        named=heads.named(at(_NAMED, packed.noun_places)),
        seen=heads.seen(at(_SEEN, packed.word_places - 1)),
        bound=heads.bound(at(_BOUND, packed.word_places)),
        pointed=pointed.unflatten(1, by_word),
        same=(said[..., None] == told[:, None]).unflatten(1, by_word),
        looked=heads.looked(at(_LOOKED, names)).unflatten(1, by_word),
        gathered=_shares_of_look(looks, _layer(_HELD, states) - 1, packed),
        held=heads.held(at(_HELD, marks)),
        sought=looks(_layer(_FOUND, states) - 1, marks, packed.asked_patches),
        found=heads.found(at(_FOUND, marks)),
    )


def _shares_of_look(looks: Callable[..., Tensor], layer: int, packed: Packed) -> Tensor:
    """From question marks to their two words, among all that they may look at."""
    marks, length = packed.ask_places - 1, packed.tokens.shape[1]
    everything = torch.arange(length, device=marks.device).expand(len(marks), -1)
    sees = packed.mask[:, 0].gather(1, marks[..., None].expand(-1, -1, length))
    logits = looks(layer, marks, everything).masked_fill(~sees, _NEVER)
    return logits.log_softmax(-1).gather(2, packed.name_places)


def head_logits(
    language_model: Any,
    layer: int,
    states: Float[Tensor, "lessons length width"],
    packed: Packed,
    origin: Int64[Tensor, "lessons origins"],
    goal: Int64[Tensor, "lessons goals"],
) -> Float[Tensor, "lessons origins goals"]:
    """Before the softmax: how much one head of a layer looks from some places to others."""
    block = language_model.layers[layer]
    attention, entered = block.self_attn, block.input_layernorm(states)
    turns = language_model.rotary_emb(entered, packed.positions)

    def projected(linear: nn.Module, places: Tensor) -> Tensor:
        heads = linear(gather(entered, places)).unflatten(-1, (-1, attention.head_dim))
        cos, sin = (gather(turn, places) for turn in turns)
        one = heads[:, :, _HEAD].unsqueeze(1)  # (lessons, 1, places, dim)
        return apply_rotary_pos_emb(one, one, cos, sin)[0].squeeze(1).float()

    queries, keys = projected(attention.q_proj, origin), projected(attention.k_proj, goal)
    return (queries @ keys.transpose(1, 2) * attention.scaling).float()  # autocast halves it


def word_losses(read: Read, batch: Batch, targets: PatchTargets) -> dict[str, Tensor]:
    """A loss for each signal, over what can be known."""
    lessons, meanings = batch.lessons, batch.meanings()
    known = (meanings.tellable | lessons.plain[:, None, None]).all(-1) & lessons.valid
    logits, place, there = _pointing(read, batch)
    of_example, of_question = object_patches(lessons, targets)
    return {
        "aimed": aim_loss(read.aimed, of_example, batch.told),
        "named": _object_loss(read.named, lessons.shown_object, batch.told),
        "seen": mean_loss(read.seen, lessons.example_value, batch.told),
        "bound": mean_loss(read.bound, lessons.example_value, batch.told),
        "pointed": mean_loss(logits, place, there),
        "looked": mean_loss(read.looked, meanings.values, meanings.tellable),
        "gathered": mean_where(-read.gathered, meanings.tellable),
        "held": mean_loss(_twice(read.held), meanings.values, meanings.tellable),
        "sought": aim_loss(read.sought, of_question, known),
        "found": _object_loss(read.found, lessons.meant, known),
    }


WORD_METRICS = (
    "aiming", "seen", "binding", "pointing", "lookup", "holding", "seeking", "found",
)  # fmt: skip
"""What `word_metrics` returns."""


def word_metrics(read: Read, batch: Batch, targets: PatchTargets) -> dict[str, Tensor]:
    """Shares of what is right, on nonce words: plain ones tell their meaning themselves."""
    lessons, meanings = batch.lessons, batch.meanings()
    nonce = ~lessons.plain[:, None]
    logits, place, there = _pointing(read, batch)
    of_example, of_question = object_patches(lessons, targets)
    return {
        "aiming": share(_hits(read.aimed, of_example), of_example.any(-1) & batch.told),
        "seen": share(read.seen.argmax(-1) == lessons.example_value, batch.told & nonce),
        "binding": share(read.bound.argmax(-1) == lessons.example_value, batch.told & nonce),
        "pointing": share(logits.argmax(-1) == place, there & nonce[..., None]),
        "lookup": share(
            read.looked.argmax(-1) == meanings.values, meanings.tellable & nonce[..., None]
        ),
        "holding": share(_are_held(read.held, meanings), batch.decided() & nonce),
        "seeking": share(
            _hits(read.sought, of_question), of_question.any(-1) & batch.decided() & nonce
        ),
        "found": share(_is_found(read.found, lessons), batch.decided() & nonce),
    }


def _pointing(read: Read, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the shown examples, which of them has the word, and whether one has."""
    shown = batch.shown[:, None, None]
    same = read.same & shown
    logits = read.pointed.masked_fill(~shown, _NEVER)
    return logits, same.to(torch.uint8).argmax(-1), same.any(-1)


def object_patches(
    lessons: Lessons, targets: PatchTargets
) -> tuple[Bool[Tensor, "lessons 4 patches"], Bool[Tensor, "lessons 8 patches"]]:
    """Patches of the object that each example, and each question, is about.

    Objects that are alike in all four attributes cannot be told apart by words, so any will do.
    """
    values, owned = (
        part.unflatten(0, (-1, EXAMPLES + 1)) for part in (targets.values[..., :4], targets.owned)
    )

    def shows(scene: int | slice, thing: Tensor) -> Tensor:
        return (values[:, scene] == thing[:, :, None]).all(-1) & owned[:, scene]

    return shows(slice(EXAMPLES), lessons.shown_object), shows(slice(EXAMPLES, None), lessons.meant)


def aim_loss(logits: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """How little of a head's look at an image falls on the wanted patches; where there are any."""
    mask = mask & wanted.any(-1)
    missed = logits.logsumexp(-1) - logits.masked_fill(~wanted, _NEVER).logsumexp(-1)
    return mean_where(missed, mask)


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of what the mask marks; 0 where it marks nothing."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def _twice(logits: Tensor) -> Tensor:
    """For each of a question's two words."""
    return logits[..., None, :].expand(*logits.shape[:-1], 2, -1)


def _are_held(logits: Tensor, meanings: Meanings) -> Tensor:
    """Whether the two likeliest values are those that the words mean; they are in order."""
    return (logits.topk(2).indices.sort(-1).values == meanings.values).all(-1)


def _hits(logits: Tensor, wanted: Tensor) -> Tensor:
    return wanted.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)


def _object_loss(logits: Tensor, thing: Tensor, mask: Tensor) -> Tensor:
    """Mean over the four attributes of an object."""
    parts = enumerate(_by_attribute(logits))
    return torch.stack([mean_loss(part, thing[..., n], mask) for n, part in parts]).mean()


def _by_attribute(logits: Tensor) -> tuple[Tensor, ...]:
    return logits.split([len(values) for values in words.VALUES], -1)


def _is_found(logits: Tensor, lessons: Lessons) -> Tensor:
    best = torch.stack([part.argmax(-1) for part in _by_attribute(logits)], -1)
    return (best == lessons.meant).all(-1)


def _layer(wanted: int, states: tuple[Tensor, ...]) -> int:
    depth = len(states) - 1
    return wanted if depth >= _LAYERS else max(1, round(wanted * depth / _LAYERS))


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
