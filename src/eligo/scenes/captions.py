"""Captions of scenes: one sentence (sparse), or all objects (dense).

A caption states that objects exist: "a red ball is left of a striped box." is true of every scene
in which some red ball is left of some striped box, so `is_true` can decide it for any scene.
Captions mention askable objects only, and list the objects they mention.
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.scenes import draws, words
from eligo.scenes.config import GRID
from eligo.scenes.graph import UNIT, SceneGraph
from eligo.scenes.phrases import (
    VOCABULARY,
    WORD_ID,
    check_askable,
    compact,
    matches,
    naming,
    phrase_words,
    related,
    relation_words,
    to_text,
    word_ids,
)
from eligo.scenes.words import COLOUR, SHAPE, SIZE, TEXTURE

TOGETHER, ALONE = len(words.RELATIONS), len(words.RELATIONS) + 1
"""Captions without a relation: two objects are there; one object is there."""
SPARSE_LENGTH = 14
"""Maximum length of a sparse caption in words, full stop included."""
DENSE_RELATIONS = 3
"""Maximum number of relations in a dense caption."""
DENSE_LENGTH = SPARSE_LENGTH * (8 + DENSE_RELATIONS)
"""Maximum length of a dense caption: a sentence per object and per relation."""

# Attributes that a sparse caption names. An object alone is described by at least three, as a
# caption that is true of many scenes is useless for retrieval.
_SPOKEN = (
    (COLOUR, SHAPE),
    (COLOUR, TEXTURE),
    (SIZE, COLOUR, SHAPE),
    (SIZE, TEXTURE, SHAPE),
    (COLOUR, TEXTURE, SHAPE),
    (SIZE, COLOUR, TEXTURE, SHAPE),
)
_FIRST_ALONE = 2
_SORTS = (1, 1, 2)  # weights of captions of one object, of two, of two in a relation
_ORDINALS = ("first", "second", "third", "fourth")
_CHUNK = 1 << 24  # elements that `is_true` holds at a time


@dataclass(frozen=True)
class Captions:
    """Sparse captions of a batch of scenes."""

    first: Int64[Tensor, "scenes captions 4"]
    second: Int64[Tensor, "scenes captions 4"]
    """All open (-1) for a caption of one object."""
    relation: Int64[Tensor, "scenes captions"]
    """Index into `words.RELATIONS`, or TOGETHER, or ALONE."""
    deciding: Bool[Tensor, "scenes captions slots"]
    """The objects that make it true of its scene."""
    words: Int64[Tensor, "scenes captions length"]
    """Word ids, -1 after the end."""

    def text(self, scene: int, caption: int) -> str:
        """Return the caption as text."""
        return to_text(self.words[scene, caption].tolist())


@dataclass(frozen=True)
class DenseCaptions:
    """One dense caption per scene: every askable object in reading order, then some relations."""

    order: Int64[Tensor, "scenes objects"]
    """Slots in the order of their sentences; -1 pads."""
    pairs: Int64[Tensor, "scenes relations 2"]
    """Slots of the relations; -1 pads."""
    relation: Int64[Tensor, "scenes relations"]
    """Index into `words.RELATIONS`; -1 pads."""
    deciding: Bool[Tensor, "scenes slots"]
    """The objects it mentions: every askable one."""
    words: Int64[Tensor, "scenes length"]
    """Word ids, -1 after the end; at most DENSE_LENGTH."""

    def text(self, scene: int) -> str:
        """Return the caption as text."""
        return to_text(self.words[scene].tolist())


@cache
def _spoken(device: torch.device) -> Bool[Tensor, "choices 4"]:
    table = torch.zeros(len(_SPOKEN), 4, dtype=torch.bool)
    for row, attributes in enumerate(_SPOKEN):
        table[row, list(attributes)] = True
    return table.to(device)


def _holds(graph: SceneGraph) -> Bool[Tensor, "scenes relations objects others"]:
    """Return between which objects each relation holds, TOGETHER (different) and ALONE (itself)."""
    count = graph.config.max_objects  # captions leave out later slots
    both = graph.askable[:, :count, None] & graph.askable[:, None, :count]
    itself = torch.eye(count, dtype=torch.bool, device=graph.device)
    either = torch.stack([both & ~itself, both & itself], 1)
    return torch.cat([related(graph)[..., :count, :count], either], 1)


def draw_captions(graph: SceneGraph, count: int = 1) -> Captions:
    """Draw `count` sparse captions of every scene.

    >>> from eligo.scenes import SceneConfig, draw_scenes
    >>> captions = draw_captions(draw_scenes(SceneConfig(), "train", range(2)))
    >>> captions.text(0, 0).endswith(".")
    True
    """
    check_askable(graph, "captions")
    device, objects = graph.device, graph.config.max_objects
    keys = draws.subkeys(graph.keys, "caption", count)
    holds = _holds(graph)
    askable = graph.askable[:, None, :objects].expand(-1, count, -1)
    slot, _ = draws.choose(keys, "first", askable)
    rows = slot[:, :, None, None, None].expand(-1, -1, holds.shape[1], 1, objects)
    options = holds[:, None].expand(-1, count, -1, -1, -1).gather(3, rows)[..., 0, :]
    sort = draws.choose_weighted(keys, "sort", _SORTS)[..., None]
    wanted = torch.tensor([2] * TOGETHER + [1, 0], device=device) == sort
    pick, found = draws.choose(keys, "second", (options & wanted[..., None]).flatten(-2))
    relation = torch.where(found, pick // objects, ALONE)  # a room with one object has no pair
    alone = relation == ALONE
    few = draws.integers(keys, "spoken", 2, len(_SPOKEN))
    many = _FIRST_ALONE + draws.integers(keys, "spoken", 2, len(_SPOKEN) - _FIRST_ALONE)
    spoken = torch.where(alone[..., None], many, few)
    phrases = []
    for place, chosen in enumerate((slot, pick % objects)):
        values = graph.attributes.gather(1, chosen[..., None].expand(-1, -1, 4))
        phrases.append(torch.where(_spoken(device)[spoken[..., place]], values, -1))
    first, second = phrases
    second = torch.where(alone[..., None], -1, second)

    reads = matches(first, graph)[..., :objects, None] & matches(second, graph)[..., None, :objects]
    scenes = torch.arange(len(graph), device=device)[:, None]
    pairs = reads & holds[scenes, relation]
    deciding = pairs.any(-1) | pairs.any(-2)
    deciding = torch.nn.functional.pad(deciding, (0, graph.exists.shape[1] - objects))
    return Captions(first, second, relation, deciding, _sentences(first, second, relation))


def is_true(captions: Captions, graph: SceneGraph) -> Bool[Tensor, "scenes captions images"]:
    """Return of which scenes of `graph` (not only its own) each caption is true.

    A caption is true of a scene if an object, or two different objects, match its phrases and its
    relation holds by the margin.
    """
    check_askable(graph, "captions")
    objects, images = graph.config.max_objects, len(graph)
    first, second = captions.first.flatten(0, 1), captions.second.flatten(0, 1)
    relation, holds = captions.relation.flatten(), _holds(graph)
    step = max(1, _CHUNK // max(1, images * objects * objects))
    columns = []
    for start in range(0, len(relation), step):
        part = slice(start, start + step)
        is_first, is_second = (
            matches(phrase[part].expand(images, -1, -1), graph)[..., :objects]
            for phrase in (first, second)
        )  # (images, captions, objects)
        reached = (holds[:, relation[part]] & is_second[..., None, :]).any(-1)
        columns.append((is_first & reached).any(-1).T)
    true = torch.cat(columns) if columns else relation.new_zeros(0, images, dtype=torch.bool)
    return true.view(*captions.relation.shape, images)


def draw_dense_captions(graph: SceneGraph) -> DenseCaptions:
    """Draw the dense caption of every scene.

    >>> from eligo.scenes import SceneConfig, draw_scenes
    >>> draw_dense_captions(draw_scenes(SceneConfig(), "train", range(2))).words.shape
    torch.Size([2, 154])
    """
    check_askable(graph, "captions")
    objects, scenes = graph.config.max_objects, len(graph)
    askable = graph.askable[:, :objects]
    row, column = (place[:, :objects] * GRID // UNIT for place in (graph.y, graph.x))
    reading = torch.where(askable, row * GRID + column, GRID * GRID)
    order = reading.argsort(dim=-1, stable=True)
    mentioned = askable.gather(1, order)

    holds = _holds(graph)[:, :TOGETHER]
    facts = []
    for place in range(DENSE_RELATIONS):
        choice, found = draws.choose(graph.keys, f"dense relation {place}", holds.flatten(1))
        relation, pair = choice // objects**2, choice % objects**2
        fact = torch.stack([pair // objects, pair % objects, relation], -1)
        facts.append(torch.where(found[:, None], fact, -1))
        used = torch.nn.functional.one_hot(pair, objects**2).view(scenes, 1, objects, objects) > 0
        holds = holds & ~(used | used.transpose(-1, -2))  # each pair is mentioned once
    fact = torch.stack(facts, 1)  # (scenes, relations, 3)

    every = graph.attributes[:, :objects].gather(1, order[..., None].expand(-1, -1, 4))
    places = _place_words(row.gather(1, order), column.gather(1, order))
    sentences = torch.cat([_with_article(every), places], -1)  # (scenes, objects, words)
    sentences = torch.where(mentioned[..., None], sentences, -1)
    pairs = fact[..., :2]
    first, second = (
        graph.attributes.gather(1, slot.clamp(min=0)[..., None].expand(-1, -1, 4))
        for slot in pairs.unbind(-1)
    )
    relations = _sentences(first, second, fact[..., 2].clamp(min=0))
    relations = torch.where(fact[..., 2:] >= 0, relations, -1)
    return DenseCaptions(
        order=torch.where(mentioned, order, -1),
        pairs=pairs,
        relation=fact[..., 2],
        deciding=graph.askable,
        words=compact(torch.cat([sentences.flatten(1), relations.flatten(1)], 1)),
    )


@cache
def _vowels(device: torch.device) -> Bool[Tensor, " vocabulary"]:
    return torch.tensor([word[0] in "aeiou" for word in VOCABULARY], device=device)


def _with_article(phrase: Int64[Tensor, "*batch 4"]) -> Int64[Tensor, "*batch 5"]:
    """Word ids of "a small red ball", "an orange thing"."""
    ids = phrase_words(phrase, naming(phrase.device), WORD_ID["thing"])
    vowel = _vowels(phrase.device)[compact(ids)[..., :1]]
    return torch.cat([torch.where(vowel, WORD_ID["an"], WORD_ID["a"]), ids], -1)


@cache
def _joints(device: torch.device) -> tuple[Int64[Tensor, "codes 2"], Int64[Tensor, "codes 3"]]:
    """Per relation, TOGETHER and ALONE: words before the first phrase and before the second."""
    opening = [[-1, -1]] * TOGETHER + [word_ids("there is")] * 2
    joint = [[WORD_ID["is"], *row] for row in relation_words(device).tolist()]
    joint += [[WORD_ID["and"], -1, -1], [-1, -1, -1]]
    return torch.tensor(opening, device=device), torch.tensor(joint, device=device)


def _sentences(
    first: Int64[Tensor, "*batch 4"],
    second: Int64[Tensor, "*batch 4"],
    relation: Int64[Tensor, "*batch"],
) -> Int64[Tensor, "*batch length"]:
    """ "there is A.", "there is A and B.", "A is left of B." """
    opening, joint = (table[relation] for table in _joints(first.device))
    other = torch.where((relation == ALONE)[..., None], -1, _with_article(second))
    stop = torch.full_like(relation[..., None], WORD_ID["."])
    ids = torch.cat([opening, _with_article(first), joint, other, stop], -1)
    return compact(ids)[..., :SPARSE_LENGTH]


def _place_words(
    row: Int64[Tensor, "*batch"], column: Int64[Tensor, "*batch"]
) -> Int64[Tensor, "*batch length"]:
    """Word ids of "is in the second row, third column."."""
    ordinals = torch.tensor([WORD_ID[word] for word in _ORDINALS], device=row.device)
    parts: list[Tensor] = []
    for word in ("is", "in", "the", "ROW", "row", ",", "COLUMN", "column", "."):
        place = {"ROW": row, "COLUMN": column}.get(word)
        parts.append(torch.full_like(row, WORD_ID[word]) if place is None else ordinals[place])
    return torch.stack(parts, -1)
