"""Questions with answers, drawn for thousands of scenes at once.

In each of the six families, the answer is drawn first and then a question that has it, so that the
question alone reveals little about the answer (see `benchmarks.scenes.stats`). Questions are about
askable objects only and list the objects that decide them.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes import draws, words
from eligo.scenes.graph import UNIT, SceneGraph, is_held_out
from eligo.scenes.phrases import check_askable, matches, related
from eligo.scenes.question_kinds import (
    ANSWER_ID,
    FAMILIES,
    KIND_ID,
    KINDS,
    NO,
    YES,
    Questions,
    question_words,
)
from eligo.scenes.words import COLOUR, SHAPE, SIZE, TEXTURE

# Attributes that a phrase names if it must identify one object, and if it asks for any.
_POINTING = ((SHAPE,), (COLOUR, SHAPE), (TEXTURE, SHAPE), (SIZE, SHAPE), (COLOUR,))
_POINTING = (*_POINTING, (COLOUR, TEXTURE))
_ASKING = ((COLOUR, SHAPE), (TEXTURE, SHAPE), (SIZE, SHAPE), (COLOUR, TEXTURE))
# Many scenes have no object group of a wanted count; with these weights, all counts are equally
# frequent (found by iterating `benchmarks.scenes.stats` on the training split).
_COUNT_WEIGHTS = (46, 56, 92, 160, 340)
# Likewise, how often "yes" is wanted for equal size, colour, texture: pairs that share one are
# rarer (from 10,000 training scenes).
_SAME_PERCENT = (50, 58, 54)
_TRIES = 3


class _Draft(NamedTuple):
    """One family's proposal for every (scene, question)."""

    found: Tensor
    kind: Tensor
    first: Tensor
    second: Tensor
    relation: Tensor
    answer: Tensor
    deciding: Tensor


@cache
def _table(rows: tuple[tuple[int, ...], ...], device: torch.device) -> Bool[Tensor, "rows 4"]:
    table = torch.zeros(len(rows), 4, dtype=torch.bool)
    for index, attributes in enumerate(rows):
        table[index, list(attributes)] = True
    return table.to(device)


@cache
def _answer_starts(device: torch.device) -> Int64[Tensor, " kinds"]:
    return torch.tensor([ANSWER_ID[kind.answers[0]] for kind in KINDS], device=device)


class _Drawer:
    """Draws drafts for one batch of scenes, with one method per family."""

    def __init__(self, graph: SceneGraph) -> None:
        self.graph = graph
        self.device = graph.device
        self.slots = graph.config.max_objects  # questions leave out later slots
        self.attributes = graph.attributes[:, : self.slots]
        self.askable = graph.askable[:, : self.slots]
        types = _table(_POINTING, self.device)
        equal = self.attributes[:, :, None] == self.attributes[:, None]  # (scenes, i, j, 4)
        alike = (equal[:, :, :, None] | ~types).all(-1)  # (scenes, i, j, types)
        alike = alike & self.askable[:, None, :, None]
        self.unique = (alike.sum(2) == 1) & self.askable[..., None]  # (scenes, slots, types)
        self.equal = equal & self.askable[:, :, None, None] & self.askable[:, None, :, None]
        shape_counts = torch.nn.functional.one_hot(self.attributes[..., SHAPE], 8)
        colour_counts = torch.nn.functional.one_hot(self.attributes[..., COLOUR], 8)
        both = torch.stack([colour_counts, shape_counts], 1) * self.askable[:, None, :, None]
        self.counts = both.sum(2)  # (scenes, colour|shape, 8)

    def draft(self, found, kind, first, answer, deciding, second=None, relation=None) -> _Draft:
        if not torch.is_tensor(kind):
            kind = torch.full_like(answer, kind)
        if second is None:
            second = torch.full_like(first, -1)
        if relation is None:
            relation = torch.zeros_like(kind)
        return _Draft(found, kind, first, second, relation, answer, deciding)

    def phrase(self, slot: Tensor, type_: Tensor, table: Tensor) -> Tensor:
        """Return the phrase that names the given attributes of one object."""
        values = self.attributes.gather(1, slot[..., None].expand(-1, -1, 4))
        return torch.where(table[type_], values, -1)

    def pointing(self, key: Tensor, stream: str, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return per object a random phrase type that identifies it without naming the hidden
        attribute (-1: none), and whether there is one. (scenes, questions, slots)"""
        types = _table(_POINTING, self.device)
        excluded = (
            torch.nn.functional.one_hot(hidden.clamp(min=0), 4).bool() & (hidden >= 0)[..., None]
        )
        allowed = ~(types & excluded[..., None, :]).any(-1)  # (scenes, questions, types)
        allowed = self.unique[:, None] & allowed[:, :, None]
        keys = draws.subkeys(key, stream, self.slots)
        return draws.choose(keys, "type", allowed)

    def one(self, key: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw an identifiable object: its slot, its phrase, and whether there is one."""
        type_, can = self.pointing(key, "one", hidden)
        slot, found = draws.choose(key, "which", can)
        type_ = type_.gather(-1, slot[..., None])[..., 0]
        return slot, self.phrase(slot, type_, _table(_POINTING, self.device)), found

    def two(self, key: Tensor, hidden: Tensor, allowed: Tensor) -> tuple[Tensor, ...]:
        """Draw an allowed pair (scenes, questions, i, j) of identifiable objects."""
        type_, can = self.pointing(key, "two", hidden)
        apart = ~torch.eye(self.slots, dtype=torch.bool, device=self.device)
        pairs = allowed & can[..., :, None] & can[..., None, :] & apart
        pair, found = draws.choose(key, "which", pairs.flatten(-2))
        slots = pair // self.slots, pair % self.slots
        table = _table(_POINTING, self.device)
        phrases = [
            self.phrase(slot, type_.gather(-1, slot[..., None])[..., 0], table) for slot in slots
        ]
        deciding = self.slot_mask(slots[0]) | self.slot_mask(slots[1])
        return *phrases, found, deciding

    def slot_mask(self, slot: Tensor) -> Tensor:
        """Return one slot as a mask over slots."""
        return torch.nn.functional.one_hot(slot, self.slots).bool()

    def matches(self, phrase: Tensor) -> Tensor:
        """Return which objects a phrase matches. (scenes, questions, slots)"""
        return matches(phrase, self.graph)[..., : self.slots]

    def lookup(self, key: Tensor) -> _Draft:
        attribute = draws.integer(key, "asked", 4)
        slot, phrase, found = self.one(key, attribute)
        value = self.attributes.gather(1, slot[..., None].expand(-1, -1, 4))
        value = value.gather(-1, attribute[..., None])[..., 0]
        answer = _answer_starts(self.device)[attribute] + value
        return self.draft(found, attribute, phrase, answer, self.slot_mask(slot))

    def existence(self, key: Tensor) -> _Draft:
        yes = draws.integer(key, "wanted", 2) == 0
        type_ = draws.integer(key, "type", len(_ASKING))
        table = _table(_ASKING, self.device)
        slot, found = draws.choose(key, "slot", self.askable[:, None].expand(*key.shape, -1))
        present = self.phrase(slot, type_, table)
        # For "no", mix attributes of two objects (both halves are in the image), or any values.
        mixed = present
        missing = torch.zeros_like(yes)
        for attempt in range(4):
            other, _ = draws.choose(
                key, f"other {attempt}", self.askable[:, None].expand(*key.shape, -1)
            )
            candidate = self.phrase(other, type_, table)
            last = SHAPE if attempt % 2 else COLOUR
            swap = torch.arange(4, device=self.device) == last
            swap = torch.where((candidate[..., last] >= 0)[..., None], swap, ~swap)
            candidate = torch.where(swap, candidate, present)
            if attempt == 3:
                free = torch.stack(
                    [draws.integer(key, f"free {i}", len(v)) for i, v in enumerate(words.VALUES)],
                    -1,
                )
                candidate = torch.where(table[type_], free, -1)
            good = ~self.matches(candidate).any(-1)
            if self.graph.split != "test":
                named = (candidate[..., COLOUR] >= 0) & (candidate[..., SHAPE] >= 0)
                good &= ~(named & is_held_out(candidate[..., COLOUR], candidate[..., SHAPE]))
            mixed = torch.where((good & ~missing)[..., None], candidate, mixed)
            missing |= good
        phrase = torch.where(yes[..., None], present, mixed)
        # A "no" is decided by all objects that share a named attribute with the phrase.
        near = (phrase[:, :, None] == self.attributes[:, None]).any(-1) & self.askable[:, None]
        deciding = torch.where(yes[..., None], self.matches(phrase), near)
        answer = torch.where(yes, YES, NO)
        found = found & (yes | missing)
        return self.draft(found, KIND_ID["existence"], phrase, answer, deciding)

    def count(self, key: Tensor) -> _Draft:
        by_shape = draws.integer(key, "by", 2)
        wanted = draws.choose_weighted(key, "wanted", _COUNT_WEIGHTS)
        counts = torch.where(by_shape[..., None] == 1, self.counts[:, 1:], self.counts[:, :1])
        value, found = draws.choose(key, "value", counts == wanted[..., None])
        phrase = self.single(value, by_shape)
        answer = ANSWER_ID["0"] + wanted
        deciding = self.matches(phrase)
        return self.draft(found, KIND_ID["count"], phrase, answer, deciding)

    def single(self, value: Tensor, by_shape: Tensor) -> Tensor:
        """Return a phrase that names a colour or a shape only."""
        axis = torch.arange(4, device=self.device)
        named = torch.where(by_shape == 1, SHAPE, COLOUR)[..., None]
        return torch.where(axis == named, value[..., None], -1)

    def comparison(self, key: Tensor) -> _Draft:
        sort = draws.integer(key, "sort", 3)
        drafts = [self.more(key), self.same(key), self.larger(key)]
        return _pick(drafts, sort)

    def more(self, key: Tensor) -> _Draft:
        yes = draws.integer(key, "wanted", 2) == 0
        by_shape = draws.integer(key, "by", 2)
        counts = torch.where(by_shape[..., None] == 1, self.counts[:, 1:], self.counts[:, :1])
        left, right = counts[..., :, None], counts[..., None, :]
        apart = ~torch.eye(8, dtype=torch.bool, device=self.device)
        truth = torch.where(yes[..., None, None], left > right, left <= right)
        both = truth & apart & (left > 0) & (right > 0)
        loose = truth & apart & (left + right > 0)
        pairs = torch.where(both.any((-1, -2), keepdim=True), both, loose)
        pair, found = draws.choose(key, "pair", pairs.flatten(-2))
        first, second = self.single(pair // 8, by_shape), self.single(pair % 8, by_shape)
        deciding = self.matches(first) | self.matches(second)
        answer = torch.where(yes, YES, NO)
        return self.draft(found, KIND_ID["more"], first, answer, deciding, second)

    def same(self, key: Tensor) -> _Draft:
        attribute = draws.integer(key, "attribute", 3)
        percent = torch.tensor(_SAME_PERCENT, device=self.device)[attribute]
        yes = draws.integer(key, "wanted", 100) < percent
        equal = self.equal.movedim(-1, 1)[:, :3]  # (scenes, attributes, i, j)
        index = attribute[..., None, None].expand(-1, -1, *equal.shape[-2:])
        allowed = equal.gather(1, index) == yes[..., None, None]
        # Repeats share colour and shape: two objects of one shape mostly have the same colour.
        allowed &= (attribute != COLOUR)[..., None, None] | ~self.equal[:, None, ..., SHAPE]
        first, second, found, deciding = self.two(key, attribute, allowed)
        kind = KIND_ID["same size"] + attribute
        answer = torch.where(yes, YES, NO)
        return self.draft(found, kind, first, answer, deciding, second)

    def larger(self, key: Tensor) -> _Draft:
        yes = draws.integer(key, "wanted", 2) == 0
        smaller = draws.integer(key, "smaller", 2)
        size = self.attributes[..., SIZE]
        larger = (size[:, :, None] > size[:, None, :])[:, None]
        first_larger = (yes == (smaller == 0))[..., None, None]
        allowed = torch.where(first_larger, larger, larger.transpose(-1, -2))
        hidden = torch.full_like(smaller, SIZE)
        first, second, found, deciding = self.two(key, hidden, allowed)
        answer = torch.where(yes, YES, NO)
        return self.draft(found, KIND_ID["larger"] + smaller, first, answer, deciding, second)

    def relation(self, key: Tensor) -> _Draft:
        yes = draws.integer(key, "wanted", 2) == 0
        relation = draws.integer(key, "relation", len(words.RELATIONS))
        holds = related(self.graph)[..., : self.slots, : self.slots]
        true = torch.where(yes, relation, relation ^ 1)  # for "no", the opposite relation holds
        allowed = holds.gather(1, true[..., None, None].expand(-1, -1, *holds.shape[-2:]))
        hidden = torch.full_like(relation, -1)
        first, second, found, deciding = self.two(key, hidden, allowed)
        answer = torch.where(yes, YES, NO)
        kind = KIND_ID["relation"]
        return self.draft(found, kind, first, answer, deciding, second, relation)

    def location(self, key: Tensor) -> _Draft:
        sort = draws.integer(key, "sort", 3)
        slot, phrase, found = self.one(key, torch.full_like(sort, -1))
        x, y = self.graph.x.gather(1, slot), self.graph.y.gather(1, slot)
        quarter = (y * 2 // UNIT) * 2 + x * 2 // UNIT
        value = torch.where(sort == 0, quarter, torch.where(sort == 1, x, y) * 4 // UNIT)
        kind = KIND_ID["quarter"] + sort
        answer = _answer_starts(self.device)[kind] + value
        return self.draft(found, kind, phrase, answer, self.slot_mask(slot))


def _pick(drafts: list[_Draft], index: Tensor) -> _Draft:
    """Return, for every (scene, question), the draft with the given index."""
    result = drafts[0]
    for number, draft in enumerate(drafts[1:], start=1):
        chosen = index == number
        result = _Draft(
            *(
                torch.where(chosen.view(chosen.shape + (1,) * (new.ndim - 2)), new, old)
                for new, old in zip(draft, result, strict=True)
            )
        )
    return result


def draw_questions(
    graph: SceneGraph,
    count: int,
    families: tuple[str, ...] = FAMILIES,
    *,
    weights: tuple[int, ...] | None = None,
    names: Int64[Tensor, "*tables 4 8"] | None = None,
) -> Questions:
    """Draw `count` questions on every scene, from the given families (evenly, or by weights).

    >>> from eligo.scenes import SceneConfig, draw_scenes
    >>> questions = draw_questions(draw_scenes(SceneConfig(), "train", range(1)), 2, ("count",))
    >>> questions.text(0, 0).startswith("how many")
    True
    """
    unknown = [family for family in families if family not in FAMILIES]
    if unknown or not families:
        raise InputError(f"question families are {', '.join(FAMILIES)}; got {families}")
    if weights is not None and len(weights) != len(families):
        raise InputError(f"{len(families)} families need as many weights, got {weights}")
    check_askable(graph, "questions")
    drawer = _Drawer(graph)
    keys = draws.subkeys(graph.keys, "question", count)
    family = draws.choose_weighted(keys, "family", weights or (1,) * len(families))
    result: _Draft | None = None
    for attempt in range(_TRIES):
        key = draws.subkeys(keys, "attempt", _TRIES)[..., attempt].contiguous()
        draft = _pick([getattr(drawer, name)(key) for name in families], family)
        result = draft if result is None else _pick([draft, result], result.found.long())
    assert result is not None
    answer = torch.where(result.found, result.answer, -1)
    others = graph.exists.shape[1] - drawer.slots
    deciding = torch.nn.functional.pad(result.deciding, (0, others))
    no_words = torch.empty_like(deciding[..., :0], dtype=torch.int64)
    questions = Questions(
        result.kind, result.first, result.second, result.relation, answer, deciding, no_words
    )
    return replace(questions, words=question_words(questions, names))
