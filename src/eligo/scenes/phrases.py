"""Phrases: "small red thing" as four integers, matched against objects and written as words.

A phrase is (size, colour, texture, shape), with -1 for open attributes. Sentences are rows of word
ids padded with -1, so that text for thousands of scenes is made by indexing, on any device.
"""

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes import words
from eligo.scenes.graph import UNIT, SceneGraph
from eligo.scenes.words import SHAPE

_GRAMMAR = """
    ? . , a above an and are below bottom column corner do first fourth fourths from has have how
    image in is larger left many more of on one or photo quarter right room row same second shows
    size smaller than the there third thing things to top what where which with any
    texture colour shape no yes 0 1 2 3 4 wall floor clutter means
"""

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *_GRAMMAR.split(),
            *(name for names in words.VALUES for name in names),
            *words.PLURALS,
            *words.TWINS.values(),
            *words.NONCE,
        )
    )
)
"""All words; the position is the id."""
WORD_ID = {word: index for index, word in enumerate(VOCABULARY)}

MARGIN = UNIT // 10
"""Relations hold only between centres at least a tenth of the image apart."""


def check_askable(graph: SceneGraph, what: str) -> None:
    """Refuse scenes with painted objects: questions and captions are about what RGB shows."""
    if graph.config.painted:
        raise InputError(
            f"{what} need scenes without painted objects: RGB cannot tell them from solid ones; "
            f"got painted={graph.config.painted}, set painted=0"
        )


def word_ids(text: str) -> list[int]:
    """Return the ids of space-separated words: `word_ids("what shape is the")`."""
    return [WORD_ID[word] for word in text.split()]


def to_text(ids: Sequence[int]) -> str:
    """Return a row of ids as text: `is there any red ball?`"""
    text = " ".join(VOCABULARY[index] for index in ids if index >= 0)
    return text.replace(" ?", "?").replace(" .", ".").replace(" ,", ",")


@cache
def naming(device: torch.device, plural: bool = False) -> Int64[Tensor, "4 8"]:
    """Return the word id of every attribute value; a lexicon replaces this table."""
    table = torch.full((4, 8), -1)
    for attribute, names in enumerate(words.VALUES):
        shown = words.PLURALS if plural and attribute == SHAPE else names
        table[attribute, : len(names)] = torch.tensor([WORD_ID[name] for name in shown])
    return table.to(device)


def matches(
    phrase: Int64[Tensor, "scenes *places 4"], graph: SceneGraph
) -> Bool[Tensor, "scenes *places slots"]:
    """Return which askable objects of its scene each phrase matches."""
    places = phrase.ndim - 2
    shape = (len(graph),) + (1,) * places
    attributes = graph.attributes.view(*shape, *graph.attributes.shape[1:])
    same = (phrase[..., None, :] == attributes) | (phrase[..., None, :] < 0)
    return same.all(-1) & graph.askable.view(*shape, graph.exists.shape[1])


def related(graph: SceneGraph) -> Bool[Tensor, "scenes relations slots others"]:
    """Return which askable objects are left of, right of, above, below which, by the margin."""
    places = torch.stack([graph.x, graph.y], 1)
    gap = places[..., None, :] - places[..., :, None]  # j minus i: positive if i is left or above
    holds = torch.stack([gap >= MARGIN, gap <= -MARGIN], 2).flatten(1, 2)
    return holds & graph.askable[:, None, :, None] & graph.askable[:, None, None, :]


@cache
def relation_words(device: torch.device) -> Int64[Tensor, "relations 2"]:
    """Return the word ids of `words.RELATIONS`, -1 after the end."""
    rows = [[*word_ids(name), -1][:2] for name in words.RELATIONS]
    return torch.tensor(rows, device=device)


def phrase_words(
    phrase: Int64[Tensor, "*batch 4"], names: Int64[Tensor, "*tables 4 8"], noun: int
) -> Int64[Tensor, "*batch 4"]:
    """Return the word ids of a phrase, -1 for open attributes; `noun` replaces an open shape."""
    named = phrase >= 0
    table = names.expand(*phrase.shape[:-1], 4, 8)
    ids = table.gather(-1, phrase.clamp(min=0)[..., None])[..., 0]
    empty = torch.full_like(ids, -1)
    empty[..., SHAPE] = noun
    return torch.where(named, ids, empty)


def compact(ids: Int64[Tensor, "*batch length"]) -> Int64[Tensor, "*batch length"]:
    """Move the words of each row to the front, -1 to the end."""
    return ids.gather(-1, (ids < 0).to(torch.uint8).argsort(dim=-1, stable=True))
