"""Auxiliary losses for every step from an example to an answer; used in training only.

A learner that is trained on answers alone learns plain words and stays at chance on nonce words:
nothing makes an example's word attend to its own image. So each step has a loss of its own:

    aimed     a head attends from the noun of an example's question to the object's patches
    named     ... and its state has the attributes of that object
    seen      ASSISTANT: of an example has the value that its question asks for
    bound     the example's word, the next token, has that value as its meaning
    pointed   a head attends from a question's word to the same word in an example
    looked    ... and its state has the word's meaning
    gathered  a head attends from the question mark to both words of its question
    held      ... and its state has both meanings
    sought    a head attends from the question mark to the patches of the object with both meanings
    found     ... and its state has the attributes of that object

`aimed`, `pointed`, `gathered` and `sought` are logits of one attention head, as the model computes
them; the others are linear read-outs of a state, dropped after training. Without the attention
losses, training stalls at a good guess: a state holds the values in an image but not their
object, or the attribute of a word but not its value. docs/shots_study.md has figures.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from benchmarks.shots.packing import Batch, Packed
from eligo.scenes import words
from eligo.scenes.vlm_heads import PatchTargets
from eligo.shots.learner.lessons import EXAMPLES, NUM_VALUES, QUESTIONS, Lessons

_NAMED, _SEEN, _BOUND, _LOOKED, _HELD, _FOUND = 1, 2, 3, 5, 6, 7
"""Layers after which states are read."""
_LAYERS = 8  # a model with fewer is read at the same relative depths
_HEAD = 0
"""The attention head: for `pointed` in the layer after `bound`, for the others in the layer before
their state is read."""
_MASKED = -1e4


class WordHeads(nn.Module):
    """The linear read-outs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.named, self.seen, self.bound, self.looked, self.held, self.found = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_VALUES)) for _ in range(6)
        )


class Read(NamedTuple):
    """All read-outs of a batch."""

    aimed: Float[Tensor, "lessons 4 patches"]
    """Attention logits of an example's patches, from the noun of its question."""
    named: Float[Tensor, "lessons 4 values"]
    seen: Float[Tensor, "lessons 4 values"]
    bound: Float[Tensor, "lessons 4 values"]
    pointed: Float[Tensor, "lessons 8 2 examples"]
    """Attention logits of the examples' words, from each word of a question."""
    same: Bool[Tensor, "lessons 8 2 examples"]
    """Which of these is the same word."""
    looked: Float[Tensor, "lessons 8 2 values"]
    gathered: Float[Tensor, "lessons 8 2"]
    """Log attention of a question mark to each word of its question."""
    held: Float[Tensor, "lessons 8 values"]
    sought: Float[Tensor, "lessons 8 patches"]
    """Attention logits of the question's patches, from each question mark."""
    found: Float[Tensor, "lessons 8 values"]


def read_out(
    heads: WordHeads, language_model: Any, states: tuple[Tensor, ...], packed: Packed
) -> Read:
    """Read out the states: the input of the first layer, then the output of each."""

    def at(layer: int, positions: Tensor) -> Tensor:
        return gather(states[_layer(layer, states)], positions).float()

    def attend(layer: int, source: Tensor, target: Tensor) -> Tensor:
        return head_logits(language_model, layer, states[layer], packed, source, target)

    names = packed.name_places.flatten(1)
    used, taught = (packed.tokens.gather(1, positions) for positions in (names, packed.word_places))
    marks = packed.answer_places - 1
    patches = attend(
        _layer(_NAMED, states) - 1, packed.noun_places, packed.example_patches.flatten(1)
    )
    pointed = attend(_layer(_BOUND, states), names, packed.word_places)
    by_word = (QUESTIONS, 2)
    return Read(
        # Of each example's noun, only the patches of its own image.
        aimed=patches.unflatten(2, (EXAMPLES, -1)).diagonal(dim1=1, dim2=2).transpose(1, 2),
        named=heads.named(at(_NAMED, packed.noun_places)),
        seen=heads.seen(at(_SEEN, packed.word_places - 1)),
        bound=heads.bound(at(_BOUND, packed.word_places)),
        pointed=pointed.unflatten(1, by_word),
        same=(used[..., None] == taught[:, None]).unflatten(1, by_word),
        looked=heads.looked(at(_LOOKED, names)).unflatten(1, by_word),
        gathered=_word_attention(attend, _layer(_HELD, states) - 1, packed),
        held=heads.held(at(_HELD, marks)),
        sought=attend(_layer(_FOUND, states) - 1, marks, packed.question_patches),
        found=heads.found(at(_FOUND, marks)),
    )


def _word_attention(attend: Callable[..., Tensor], layer: int, packed: Packed) -> Tensor:
    """Log attention from question marks to their two words."""
    marks, length = packed.answer_places - 1, packed.tokens.shape[1]
    everything = torch.arange(length, device=marks.device).expand(len(marks), -1)
    visible = packed.mask[:, 0].gather(1, marks[..., None].expand(-1, -1, length))
    logits = attend(layer, marks, everything).masked_fill(~visible, _MASKED)
    return logits.log_softmax(-1).gather(2, packed.name_places)


def head_logits(
    language_model: Any,
    layer: int,
    states: Float[Tensor, "lessons length width"],
    packed: Packed,
    source: Int64[Tensor, "lessons sources"],
    target: Int64[Tensor, "lessons targets"],
) -> Float[Tensor, "lessons sources targets"]:
    """Attention logits of one head of a layer, from some positions to others."""
    block = language_model.layers[layer]
    attention, normed = block.self_attn, block.input_layernorm(states)
    rotary = language_model.rotary_emb(normed, packed.positions)

    def projected(linear: nn.Module, indices: Tensor) -> Tensor:
        heads = linear(gather(normed, indices)).unflatten(-1, (-1, attention.head_dim))
        cos, sin = (gather(part, indices) for part in rotary)
        head = heads[:, :, _HEAD].unsqueeze(1)  # (lessons, 1, indices, dim)
        return apply_rotary_pos_emb(head, head, cos, sin)[0].squeeze(1).float()

    queries, keys = projected(attention.q_proj, source), projected(attention.k_proj, target)
    return (queries @ keys.transpose(1, 2) * attention.scaling).float()  # autocast halves it


def word_losses(read: Read, batch: Batch, targets: PatchTargets) -> dict[str, Tensor]:
    """One loss per step, over what the shown examples determine."""
    lessons, (values, known) = batch.lessons, batch.meanings()
    decided = (known | lessons.plain[:, None, None]).all(-1) & lessons.valid
    logits, place, exists = _pointing(read, batch)
    of_example, of_question = object_patches(lessons, targets)
    both_words = read.held[..., None, :].expand(*read.held.shape[:-1], 2, -1)
    return {
        "aimed": aim_loss(read.aimed, of_example, batch.clear),
        "named": _object_loss(read.named, lessons.shown_object, batch.clear),
        "seen": mean_loss(read.seen, lessons.example_value, batch.clear),
        "bound": mean_loss(read.bound, lessons.example_value, batch.clear),
        "pointed": mean_loss(logits, place, exists),
        "looked": mean_loss(read.looked, values, known),
        "gathered": mean_where(-read.gathered, known),
        "held": mean_loss(both_words, values, known),
        "sought": aim_loss(read.sought, of_question, decided),
        "found": _object_loss(read.found, lessons.meant, decided),
    }


WORD_METRICS = (
    "aiming", "seen", "binding", "pointing", "lookup", "holding", "seeking", "found",
)  # fmt: skip
"""Names of `word_metrics`."""


def word_metrics(read: Read, batch: Batch, targets: PatchTargets) -> dict[str, Tensor]:
    """Accuracy of each step on nonce words."""
    lessons, (values, known) = batch.lessons, batch.meanings()
    nonce = ~lessons.plain[:, None]
    clear, decided = batch.clear & nonce, batch.decided() & nonce
    logits, place, exists = _pointing(read, batch)
    of_example, of_question = object_patches(lessons, targets)
    held = read.held.topk(2).indices.sort(-1).values
    attributes = torch.stack([part.argmax(-1) for part in _by_attribute(read.found)], -1)
    return {
        "aiming": share(_hits(read.aimed, of_example), of_example.any(-1) & batch.clear),
        "seen": share(read.seen.argmax(-1) == lessons.example_value, clear),
        "binding": share(read.bound.argmax(-1) == lessons.example_value, clear),
        "pointing": share(logits.argmax(-1) == place, exists & nonce[..., None]),
        "lookup": share(read.looked.argmax(-1) == values, known & nonce[..., None]),
        "holding": share((held == values).all(-1), decided),
        "seeking": share(_hits(read.sought, of_question), of_question.any(-1) & decided),
        "found": share((attributes == lessons.meant).all(-1), decided),
    }


def _pointing(read: Read, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the shown examples, which of them has the word, and whether one has."""
    shown = batch.shown[:, None, None]
    same = read.same & shown
    logits = read.pointed.masked_fill(~shown, _MASKED)
    return logits, same.to(torch.uint8).argmax(-1), same.any(-1)


def object_patches(
    lessons: Lessons, targets: PatchTargets
) -> tuple[Bool[Tensor, "lessons 4 patches"], Bool[Tensor, "lessons 8 patches"]]:
    """Patches of the object that each example, and each question, is about.

    Objects with the same four attributes are interchangeable.
    """
    values, owned = (
        part.unflatten(0, (-1, EXAMPLES + 1)) for part in (targets.values[..., :4], targets.owned)
    )

    def shows(scene: int | slice, thing: Tensor) -> Tensor:
        return (values[:, scene] == thing[:, :, None]).all(-1) & owned[:, scene]

    return shows(slice(EXAMPLES), lessons.shown_object), shows(slice(EXAMPLES, None), lessons.meant)


def aim_loss(logits: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Mean negative log attention to the wanted patches, where there are any."""
    mask = mask & wanted.any(-1)
    losses = logits.logsumexp(-1) - logits.masked_fill(~wanted, _MASKED).logsumexp(-1)
    return mean_where(losses, mask)


def mean_where(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the mask; 0 for an empty mask."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def _hits(logits: Tensor, wanted: Tensor) -> Tensor:
    return wanted.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)


def _object_loss(logits: Tensor, attributes: Tensor, mask: Tensor) -> Tensor:
    """Mean over the four attributes of an object."""
    parts = enumerate(_by_attribute(logits))
    return torch.stack([mean_loss(part, attributes[..., n], mask) for n, part in parts]).mean()


def _by_attribute(logits: Tensor) -> tuple[Tensor, ...]:
    return logits.split([len(values) for values in words.VALUES], -1)


def _layer(wanted: int, states: tuple[Tensor, ...]) -> int:
    depth = len(states) - 1
    return wanted if depth >= _LAYERS else max(1, round(wanted * depth / _LAYERS))


def gather(states: Tensor, indices: Tensor) -> Tensor:
    """States at some positions of each row."""
    return states.gather(1, indices[..., None].expand(-1, -1, states.shape[-1]))


def mean_loss(logits: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Mean cross-entropy over the mask; 0 for an empty mask."""
    target = torch.where(mask, wanted, -100).flatten()
    total = F.cross_entropy(logits.flatten(0, -2), target, ignore_index=-100, reduction="sum")
    return total / mask.sum().clamp(min=1)


def share(right: Tensor, counted: Tensor) -> Tensor:
    """Share of `right` among `counted`."""
    return ((right & counted).sum() / counted.sum().clamp(min=1)).detach()
