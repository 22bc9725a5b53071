"""Lessons: four examples that teach four nonce words, and eight questions that need two each.

A lesson draws two attributes A, B and two values of each. The question's scene holds all four
combinations, one object each; a question names one by its A word and its B word and asks for a
third attribute, which no example teaches:

    examples  "what colour is the ball?" dax     (a1)      question  "what texture is the dax wug?"
              "what colour is the gem?"  fep     (a2)
              "what shape is the red thing?" wug (b1)      one word known: two objects are left,
              "what shape is the blue thing?" zim (b2)     both words known: one

So both words are needed, and two examples of the same word are no better than one. An example is
clear only if all objects that it could mean have the same value (`could_mean`).

Departs from the house's splits in one way: colour-shape pairs that only test scenes have elsewhere
occur here in all; what is held out is lexicons and scenes.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from eligo.scenes import draws, words
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import SceneGraph, Split, draw_scenes, split_keys, take
from eligo.scenes.lexicon import could_mean, draw_lexicons
from eligo.scenes.painter import Rendered, render
from eligo.scenes.phrases import WORD_ID, compact, matches, naming, phrase_words, word_ids
from eligo.scenes.words import COLOUR, SHAPE, SIZE

EXAMPLES, QUESTIONS = 4, 8
DEMO_WORDS, QUESTION_WORDS = 7, 8
"""Most words of "what shape is the red thing ?", and of a question with two nonce words."""
OFFSETS = (0, 3, 11, 15)
"""Where the values of size, colour, texture, shape start when all are counted through."""
NUM_VALUES = 23
_VALUES = 4  # of an attribute that a lexicon's lessons speak of
_TARGETS = 4  # objects of the question's scene that questions are about


@dataclass(frozen=True)
class Lessons:
    """A batch of lessons. Scenes are kept flat: those of a lesson's examples, then its question's.

    Attributes are numbered as in `words.ATTRIBUTES`; a value is counted through all attributes.
    """

    rendered: Rendered
    """(lessons * 5) scenes."""
    plain: Bool[Tensor, " lessons"]
    """Whether it speaks in plain words."""
    names: Int64[Tensor, "lessons 4 8"]
    """What each value is called here."""
    example_text: Int64[Tensor, "lessons 4 7"]
    """Word ids, -1 behind the end."""
    example_word: Int64[Tensor, "lessons 4"]
    """The answer: a nonce word."""
    example_value: Int64[Tensor, "lessons 4"]
    """What it means."""
    clear: Bool[Tensor, "lessons 4"]
    """Whether the example gives it away."""
    text: Int64[Tensor, "lessons 8 8"]
    """The questions' words."""
    needs: Bool[Tensor, "lessons 8 4"]
    """Which examples a question needs."""
    meant: Int64[Tensor, "lessons 8 4"]
    """Size, colour, texture and shape of the object that a question means."""
    answer: Int64[Tensor, "lessons 8"]
    """Word id of the plain answer."""
    valid: Bool[Tensor, "lessons 8"]
    """Whether exactly one object is meant."""
    guess: Float[Tensor, "lessons 8"]
    """How often one is right who sees the four objects and knows no word: by the most frequent of
    their values."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shown_object(self) -> Int64[Tensor, "lessons 4 4"]:
        """Size, colour, texture and shape of the object that an example is about."""
        things = self.rendered.graph.attributes[:, 0]
        return things.unflatten(0, (-1, EXAMPLES + 1))[:, :EXAMPLES]

    def part(self, rows: slice) -> "Lessons":
        """Some of the lessons."""
        scenes = slice(rows.start * (EXAMPLES + 1), rows.stop * (EXAMPLES + 1))
        return take(self, rows, rendered=self.rendered[scenes])


def draw_lessons(
    config: SceneConfig,
    split: Split,
    indices: Int64[Tensor, " lessons"],
    device: torch.device,
    *,
    plain: float = 0.0,
    unclear: float = 0.25,
    per_lexicon: int = 1,
) -> Lessons:
    """The lessons with these indices.

    A share `plain` of them uses the plain words. A share `unclear` of the examples is left as it
    was drawn, clear or not; in the others nothing else answers to object 0's description.
    `per_lexicon` lessons in a row share a lexicon, its two attributes and four values of each.
    """
    count = len(indices)
    places = indices[:, None] * (EXAMPLES + 1) + torch.arange(EXAMPLES + 1, device=indices.device)
    graph = draw_scenes(config, split, places.flatten(), device)
    key = graph.keys.view(count, EXAMPLES + 1)[:, EXAMPLES]

    lexicon = draw_lexicons(config.seed, split, indices.to(device) // per_lexicon, device)
    _, shared = split_keys(config.seed, split, lexicon.indices, device)
    order = draws.permutations(shared, "lesson attributes", 4)  # A, B, and the two to ask for
    sizes = torch.tensor([len(values) for values in words.VALUES], device=device)[order[:, :2]]
    some = sizes.clamp(max=_VALUES)
    first = draws.integers(key, "lesson first", 2, 1 << 20) % some
    second = (first + 1 + draws.integers(key, "lesson second", 2, 1 << 20) % (some - 1)) % some
    base = draws.integers(shared, "lesson values", 2, 1 << 20)
    # (lessons, A or B, one or the other)
    values = (torch.stack([first, second], 2) + base[..., None]) % sizes[..., None]

    shuffle = draws.permutations(key, "lesson examples", EXAMPLES)
    attribute = order[:, :2].repeat_interleave(2, 1).gather(1, shuffle)
    value = values.flatten(1).gather(1, shuffle)  # (lessons, examples)
    graph = _with_values(graph, order[:, :2], values, attribute, value)
    graph = _cleared(graph, attribute, unclear)

    known = draws.integer(key, "lesson plain", 1000) < round(plain * 1000)
    names = torch.where(known[:, None, None], naming(device), lexicon.names)
    demo = _demos(graph, attribute)
    offsets = torch.tensor(OFFSETS, device=device)
    return Lessons(
        rendered=render(graph),
        plain=known,
        names=names,
        example_text=demo.text,
        example_word=names.flatten(1).gather(1, attribute * 8 + value),
        example_value=offsets[attribute] + value,
        clear=demo.clear,
        **_questions(graph, order, values, shuffle, names),
    )


def _with_values(
    graph: SceneGraph, pair: Tensor, values: Tensor, attribute: Tensor, value: Tensor
) -> SceneGraph:
    """The drawn scenes with what the lesson is about: in an example, object 0 has the value."""
    told = graph.attributes.clone().view(len(pair), EXAMPLES + 1, *graph.attributes.shape[1:])
    told[:, :EXAMPLES, 0].scatter_(2, attribute[..., None], value[..., None])
    query = told[:, EXAMPLES, :_TARGETS]  # (lessons, targets, 4)
    for side, pattern in enumerate(((0, 0, 1, 1), (0, 1, 0, 1))):
        wanted = values[:, side][:, torch.tensor(pattern, device=values.device)]
        query.scatter_(2, pair[:, side, None, None].expand(-1, _TARGETS, 1), wanted[..., None])
    attributes = told.flatten(0, 1)
    radii = torch.tensor(
        [round(radius * 4096) for radius in graph.config.radii], device=graph.device
    )
    before, after = radii[graph.attributes[..., SIZE]], radii[attributes[..., SIZE]]
    return replace(graph, attributes=attributes, radius=graph.radius * after // before)


def _cleared(graph: SceneGraph, attribute: Tensor, unclear: float) -> SceneGraph:
    """Other objects of most examples get another shape (or colour) than object 0, if they share
    it."""
    scenes = len(attribute), EXAMPLES + 1
    told = graph.attributes.clone().view(*scenes, *graph.attributes.shape[1:])
    keys = graph.keys.view(scenes)[:, :EXAMPLES]
    clear = draws.integer(keys, "lesson clear", 1000) >= round(unclear * 1000)
    pointer = torch.where(attribute == SHAPE, COLOUR, SHAPE)[..., None, None]
    values = told[:, :EXAMPLES].gather(3, pointer.expand(-1, -1, told.shape[2], 1))
    same = (values == values[:, :, :1]) & clear[..., None, None]
    same[:, :, 0] = False
    moved = torch.where(same, (values + 1) % 8, values)
    told[:, :EXAMPLES].scatter_(3, pointer.expand_as(moved), moved)
    return replace(graph, attributes=told.flatten(0, 1))


@dataclass(frozen=True)
class _Shots:
    text: Tensor
    clear: Tensor


def _demos(graph: SceneGraph, attribute: Tensor) -> _Shots:
    """ "what <attribute> is the <object 0, by its shape, or by its colour> ?" """
    count, device = len(attribute), graph.device
    scenes = (
        torch.arange(len(graph), device=device).view(count, EXAMPLES + 1)[:, :EXAMPLES].flatten()
    )
    shown, asked = graph[scenes], attribute.flatten()
    pointer = torch.where(asked == SHAPE, COLOUR, SHAPE)
    phrase = torch.full((len(asked), 4), -1, device=device)
    phrase.scatter_(1, pointer[:, None], shown.attributes[:, 0].gather(1, pointer[:, None]))
    told = could_mean(shown, phrase[:, None], asked[:, None])[:, 0]
    said = phrase_words(phrase, naming(device), WORD_ID["thing"])
    text = _what_is(asked, said)[:, :DEMO_WORDS]
    return _Shots(text.view(count, EXAMPLES, -1), (told.sum(-1) == 1).view(count, EXAMPLES))


def _questions(
    graph: SceneGraph, order: Tensor, values: Tensor, shuffle: Tensor, names: Tensor
) -> dict[str, Tensor]:
    """Each of the four combinations, asked for each of the two other attributes."""
    count, device = len(order), graph.device
    scenes = torch.arange(len(graph), device=device).view(count, EXAMPLES + 1)[:, EXAMPLES]
    query = graph[scenes]
    one, other, asks = (grid.flatten() for grid in _grid(device))
    phrase = torch.full((count, QUESTIONS, 4), -1, device=device)
    for side, which in enumerate((one, other)):
        place = order[:, side, None, None].expand(-1, QUESTIONS, 1)
        phrase.scatter_(2, place, values[:, side][:, which][..., None])
    asked = order[:, 2:][:, asks]  # (lessons, questions)
    meant = matches(phrase, query)
    target = meant.to(torch.uint8).argmax(-1)
    found = query.attributes.gather(1, target[..., None].expand(-1, -1, 4))
    answer = found.gather(2, asked[..., None])[..., 0]
    said = phrase_words(phrase, names[:, None], WORD_ID["thing"])
    # Example number `shuffle[d]` of (a1, a2, b1, b2) stands at place d.
    wanted = torch.stack([one, 2 + other], 1)  # (questions, 2)
    needs = (shuffle[:, None, :, None] == wanted[None, :, None]).any(-1)
    return {
        "text": _what_is(asked, said),
        "needs": needs,
        "meant": found,
        "answer": naming(device).flatten()[asked * 8 + answer],
        "valid": meant.sum(-1) == 1,
        "guess": _guess(query.attributes[:, :_TARGETS], asked, answer),
    }


def _guess(objects: Tensor, asked: Tensor, answer: Tensor) -> Tensor:
    """Chance of the answer for a guess among the most frequent values; (lessons, questions)."""
    index = asked[:, None, :].expand(-1, _TARGETS, -1)
    values = objects.gather(2, index).transpose(1, 2)  # (lessons, questions, objects)
    times = (values[..., None] == values[..., None, :]).sum(-1)
    most = times.amax(-1)
    frequent = ((times == most[..., None]) / times).sum(-1)  # how many values come so often
    own = (values == answer[..., None]).sum(-1)
    return (own == most) / frequent


def _grid(device: torch.device) -> list[Tensor]:
    two = torch.arange(2, device=device)
    return list(torch.meshgrid(two, two, two, indexing="ij"))


def _what_is(asked: Int64[Tensor, "*batch"], said: Int64[Tensor, "*batch 4"]) -> Tensor:
    """ "what <attribute> is the <phrase> ?", the words in front; (*batch, 8)."""
    what, is_, the, mark = _frame(asked.device)
    named = _attribute_words(asked.device)[asked]
    parts = [word.expand(*asked.shape, 1) for word in (what, is_, the, mark)]
    row = torch.cat([parts[0], named[..., None], parts[1], parts[2], said, parts[3]], -1)
    return compact(row)[..., :QUESTION_WORDS]


@cache
def _frame(device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor([index], device=device) for index in word_ids("what is the ?"))


@cache
def _attribute_words(device: torch.device) -> Tensor:
    return torch.tensor([WORD_ID[name] for name in words.ATTRIBUTES], device=device)
