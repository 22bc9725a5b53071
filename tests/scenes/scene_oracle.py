"""A slow oracle for the language of scenes: plain Python, regular expressions, loops.

Shares nothing with the generator but its vocabulary. Reads the *text* of questions and captions, so
that wording and meaning are checked together.
"""

import re
from dataclasses import dataclass
from typing import Any

from eligo.scenes import words

UNIT = 4096
TENTH = 409
OBJECT, DECOY, CAMOUFLAGED, PAINTED = range(4)
QUARTERS = {(0, 0): "top left", (0, 1): "top right", (1, 0): "bottom left", (1, 1): "bottom right"}
ORDINALS = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Thing:
    slot: int
    kind: int
    size: str
    colour: str
    texture: str
    shape: str
    x: int
    y: int
    radius: int
    depth: int
    solid: bool

    @property
    def look(self) -> tuple[str, ...]:
        return self.size, self.colour, self.texture, self.shape


def things(graph: Any, scene: int) -> list[Thing]:
    """All things in a scene."""
    found = []
    for slot in range(graph.exists.shape[1]):
        if graph.exists[scene, slot]:
            values = graph.attributes[scene, slot].tolist()
            look: dict[str, Any] = {
                words.ATTRIBUTES[i]: words.VALUES[i][v] for i, v in enumerate(values)
            }
            place: dict[str, Any] = {
                n: int(getattr(graph, n)[scene, slot]) for n in ("x", "y", "radius", "depth")
            }
            solid = bool(graph.solid[scene, slot])
            found.append(Thing(slot, int(graph.kind[slot]), **look, **place, solid=solid))
    return found


def objects(graph: Any, scene: int) -> list[Thing]:
    """Things that questions and captions may mention."""
    return [thing for thing in things(graph, scene) if thing.kind == OBJECT]


def _any(names: tuple[str, ...]) -> str:
    return "|".join(names)


_ADJECTIVES = (
    rf"(?:(?:{_any(words.SIZES)}) )?(?:(?:{_any(words.COLOURS)}) )?(?:(?:{_any(words.TEXTURES)}) )?"
)
_ONE = rf"({_ADJECTIVES}(?:thing|{_any(words.SHAPES)}))"
_MANY = rf"({_ADJECTIVES}(?:things|{_any(words.PLURALS)}))"
_RELATION = f"({_any(words.RELATIONS)})"
_SINGULAR: dict[str, str] = dict(zip(words.PLURALS, words.SHAPES, strict=True))


def read_phrase(phrase: str) -> dict[str, str]:
    """`small red balls` -> {size: small, colour: red, shape: ball}."""
    named = {}
    for word in phrase.split():
        word = _SINGULAR.get(word, word)
        for attribute, names in zip(words.ATTRIBUTES, words.VALUES, strict=True):
            if word in names:
                named[attribute] = word
    return named


def fits(thing: Thing, phrase: str) -> bool:
    return all(getattr(thing, name) == value for name, value in read_phrase(phrase).items())


def stands(one: Thing, relation: str, other: Thing) -> bool:
    gap = {
        "left of": other.x - one.x,
        "right of": one.x - other.x,
        "above": other.y - one.y,
        "below": one.y - other.y,
    }
    return gap[relation] >= TENTH


def _only(scene: list[Thing], phrase: str) -> Thing:
    found = [thing for thing in scene if fits(thing, phrase)]
    assert len(found) == 1, f"{phrase!r} points at {len(found)} objects"
    return found[0]


def answer(text: str, scene: list[Thing]) -> tuple[str, set[int]]:
    """The answer to a question, and the slots of the objects that decide it."""

    def match(pattern: str) -> tuple[str, ...] | None:
        found = re.fullmatch(pattern, text)
        return found.groups() if found else None

    def yes(truth: bool) -> str:
        return "yes" if truth else "no"

    if got := match(rf"what (size|colour|shape|texture) (?:is|has) the {_ONE}\?"):
        attribute, phrase = got
        assert attribute not in read_phrase(phrase), "the question tells its answer"
        thing = _only(scene, phrase)
        return getattr(thing, attribute), {thing.slot}
    if got := match(rf"is there any {_ONE}\?"):
        found = {thing.slot for thing in scene if fits(thing, got[0])}
        named = read_phrase(got[0])
        near = {t.slot for t in scene if any(getattr(t, n) == v for n, v in named.items())}
        return yes(bool(found)), found or near
    if got := match(rf"how many {_MANY} are there\?"):
        found = {thing.slot for thing in scene if fits(thing, got[0])}
        return str(len(found)), found
    if got := match(rf"are there more {_MANY} than {_MANY}\?"):
        left, right = ({t.slot for t in scene if fits(t, phrase)} for phrase in got)
        return yes(len(left) > len(right)), left | right
    if got := match(rf"do the {_ONE} and the {_ONE} have the same (size|colour|texture)\?"):
        one, other, attribute = _only(scene, got[0]), _only(scene, got[1]), got[2]
        assert one != other
        assert attribute not in read_phrase(got[0]) | read_phrase(got[1])
        same = getattr(one, attribute) == getattr(other, attribute)
        return yes(same), {one.slot, other.slot}
    if got := match(rf"is the {_ONE} (larger|smaller) than the {_ONE}\?"):
        one, other = _only(scene, got[0]), _only(scene, got[2])
        sizes = [words.SIZES.index(thing.size) for thing in (one, other)]
        assert sizes[0] != sizes[1]
        assert "size" not in read_phrase(got[0]) | read_phrase(got[2])
        return yes((sizes[0] > sizes[1]) == (got[1] == "larger")), {one.slot, other.slot}
    if got := match(rf"is the {_ONE} {_RELATION} the {_ONE}\?"):
        one, other = _only(scene, got[0]), _only(scene, got[2])
        opposite = words.RELATIONS[words.RELATIONS.index(got[1]) ^ 1]
        truth = stands(one, got[1], other)
        assert truth or stands(one, opposite, other), "too close to call"
        return yes(truth), {one.slot, other.slot}
    if got := match(rf"in which (quarter|column|row) is the {_ONE}\?"):
        thing = _only(scene, got[1])
        if got[0] == "quarter":
            place = QUARTERS[(int(thing.y >= UNIT // 2), int(thing.x >= UNIT // 2))]
        else:
            place = ORDINALS[(thing.x if got[0] == "column" else thing.y) // (UNIT // 4)]
        return place, {thing.slot}
    raise AssertionError(f"unknown question {text!r}")


def _strip(noun: str) -> str:
    """The phrase without its article, which must be the correct one."""
    article, phrase = noun.split(" ", 1)
    assert article == ("an" if phrase[0] in "aeiou" else "a"), noun
    return phrase


def readings(text: str, scene: list[Thing]) -> list[set[int]]:
    """All ways in which a sparse caption is true of a scene, as sets of slots."""
    noun = rf"(an? {_ADJECTIVES}(?:thing|{_any(words.SHAPES)}))"
    if got := re.fullmatch(rf"there is {noun}\.", text):
        return [{thing.slot} for thing in scene if fits(thing, _strip(got[1]))]
    if got := re.fullmatch(rf"there is {noun} and {noun}\.", text):
        one, relation, other = got[1], None, got[2]
    else:
        got = re.fullmatch(rf"{noun} is {_RELATION} {noun}\.", text)
        assert got, f"unknown caption {text!r}"
        one, relation, other = got.groups()
    return [
        {a.slot, b.slot}
        for a in scene
        for b in scene
        if a != b
        and fits(a, _strip(one))
        and fits(b, _strip(other))
        and (relation is None or stands(a, relation, b))
    ]


def read_dense(text: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """(size, colour, texture, shape, row, column) of every listed object; the other sentences."""
    place = rf"(an? .*) is in the ({_any(ORDINALS)}) row, ({_any(ORDINALS)}) column"
    listed, rest = [], []
    for sentence in text.removesuffix(".").split(". "):
        if got := re.fullmatch(place, sentence):
            named = read_phrase(_strip(got[1]))
            listed.append((*(named[name] for name in words.ATTRIBUTES), got[2], got[3]))
        else:
            rest.append(sentence + ".")
    return listed, rest


def class_of(thing: Thing, twin: list[bool]) -> str:
    """The name of a solid thing in the label map of a plain scene."""
    if thing.kind == DECOY:
        return "clutter"
    for second, (first, other) in zip(twin, words.TWINS.items(), strict=True):
        if thing.shape == first and second:
            return other
    return thing.shape
