"""Lessons: generated prompts with nonce words (made-up words that the model has never seen).

A lesson has four examples, each of which teaches one nonce word, and eight questions, each of which
needs two of the words. It draws two attributes A, B and two values of each. The question's scene
holds all four combinations, one object each; a question names one by its A word and its B word and
asks for a third attribute, which no example teaches:

    examples  "what colour is the ball?" dax     (a1)      question  "what texture is the dax wug?"
              "what colour is the gem?"  fep     (a2)
              "what shape is the red thing?" wug (b1)      one word known: two objects are left,
              "what shape is the blue thing?" zim (b2)     both words known: one

So both words are needed, and two examples of the same word are no better than one. An example is
clear only if all objects that it could mean have the same value (`could_mean`). A lexicon maps
values to nonce words. Test lessons have their own lexicons and scenes; unlike elsewhere in
`eligo.scenes`, no colour-shape pairs are held out.
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
EXAMPLE_WORDS, QUESTION_WORDS = 7, 8
"""Maximum number of words in an example's question, and in a question with two nonce words."""
OFFSETS = (0, 3, 11, 15)
"""First index of the sizes, colours, textures and shapes when all values are numbered in a row."""
NUM_VALUES = 23
_VALUES = 4  # used of each attribute by the lessons of a lexicon
_TARGETS = 4  # objects of the question's scene that questions are about


@dataclass(frozen=True)
class Lessons:
    """A batch of lessons. Scenes are flat: those of a lesson's examples, then its question's.

    Attributes are numbered as in `words.ATTRIBUTES`, values across all attributes (`OFFSETS`).
    """

    rendered: Rendered
    """(lessons * 5) scenes."""
    plain: Bool[Tensor, " lessons"]
    """Whether the lesson uses plain instead of nonce words."""
    names: Int64[Tensor, "lessons 4 8"]
    """Word id of each value, by attribute."""
    example_text: Int64[Tensor, "lessons 4 7"]
    """Word ids, padded with -1."""
    example_word: Int64[Tensor, "lessons 4"]
    """The answer: a nonce word."""
    example_value: Int64[Tensor, "lessons 4"]
    """The value that the word means."""
    clear: Bool[Tensor, "lessons 4"]
    """Whether the example determines that value."""
    text: Int64[Tensor, "lessons 8 8"]
    """Word ids of the questions, padded with -1."""
    needs: Bool[Tensor, "lessons 8 4"]
    """Which examples a question needs."""
    meant: Int64[Tensor, "lessons 8 4"]
    """Size, colour, texture and shape of the object that a question means."""
    answer: Int64[Tensor, "lessons 8"]
    """Word id of the plain answer."""
    valid: Bool[Tensor, "lessons 8"]
    """Whether exactly one object is meant."""
    guess: Float[Tensor, "lessons 8"]
    """Accuracy of guessing the most frequent value among the four objects, without the words."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shown_object(self) -> Int64[Tensor, "lessons 4 4"]:
        """Size, colour, texture and shape of the object that an example is about."""
        objects = self.rendered.graph.attributes[:, 0]
        return objects.unflatten(0, (-1, EXAMPLES + 1))[:, :EXAMPLES]

    def part(self, rows: slice) -> "Lessons":
        """Return the lessons of a slice."""
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
    """Draw the lessons with these indices.

    A share `plain` of them uses plain words. A share `unclear` of the examples is left as drawn,
    clear or not; in the others no other object fits the description of object 0. `per_lexicon`
    consecutive lessons share a lexicon, its two attributes and four values of each.
    """
    count = len(indices)
    scenes = indices[:, None] * (EXAMPLES + 1) + torch.arange(EXAMPLES + 1, device=indices.device)
    graph = draw_scenes(config, split, scenes.flatten(), device)
    key = graph.keys.view(count, EXAMPLES + 1)[:, EXAMPLES]

    lexicon = draw_lexicons(config.seed, split, indices.to(device) // per_lexicon, device)
    _, shared = split_keys(config.seed, split, lexicon.indices, device)
    order = draws.permutations(shared, "lesson attributes", 4)  # A, B, and the two to ask for
    sizes = torch.tensor([len(values) for values in words.VALUES], device=device)[order[:, :2]]
    num_values = sizes.clamp(max=_VALUES)
    first = draws.integers(key, "lesson first", 2, 1 << 20) % num_values
    second = (
        first + 1 + draws.integers(key, "lesson second", 2, 1 << 20) % (num_values - 1)
    ) % num_values
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
    example_text, clear = _examples(graph, attribute)
    offsets = torch.tensor(OFFSETS, device=device)
    return Lessons(
        rendered=render(graph),
        plain=known,
        names=names,
        example_text=example_text,
        example_word=names.flatten(1).gather(1, attribute * 8 + value),
        example_value=offsets[attribute] + value,
        clear=clear,
        **_questions(graph, order, values, shuffle, names),
    )


def _with_values(
    graph: SceneGraph, pair: Tensor, values: Tensor, attribute: Tensor, value: Tensor
) -> SceneGraph:
    """Set the values of the lesson: object 0 of an example, four objects of the question."""
    changed = graph.attributes.clone().view(len(pair), EXAMPLES + 1, *graph.attributes.shape[1:])
    changed[:, :EXAMPLES, 0].scatter_(2, attribute[..., None], value[..., None])
    query = changed[:, EXAMPLES, :_TARGETS]  # (lessons, targets, 4)
    for side, pattern in enumerate(((0, 0, 1, 1), (0, 1, 0, 1))):
        wanted = values[:, side][:, torch.tensor(pattern, device=values.device)]
        query.scatter_(2, pair[:, side, None, None].expand(-1, _TARGETS, 1), wanted[..., None])
    attributes = changed.flatten(0, 1)
    radii = torch.tensor(
        [round(radius * 4096) for radius in graph.config.radii], device=graph.device
    )
    before, after = radii[graph.attributes[..., SIZE]], radii[attributes[..., SIZE]]
    return replace(graph, attributes=attributes, radius=graph.radius * after // before)


def _cleared(graph: SceneGraph, attribute: Tensor, unclear: float) -> SceneGraph:
    """Make most examples clear: no other object shares the described shape (or colour)."""
    scenes = len(attribute), EXAMPLES + 1
    changed = graph.attributes.clone().view(*scenes, *graph.attributes.shape[1:])
    keys = graph.keys.view(scenes)[:, :EXAMPLES]
    clear = draws.integer(keys, "lesson clear", 1000) >= round(unclear * 1000)
    pointer = torch.where(attribute == SHAPE, COLOUR, SHAPE)[..., None, None]
    values = changed[:, :EXAMPLES].gather(3, pointer.expand(-1, -1, changed.shape[2], 1))
    same = (values == values[:, :, :1]) & clear[..., None, None]
    same[:, :, 0] = False
    moved = torch.where(same, (values + 1) % 8, values)
    changed[:, :EXAMPLES].scatter_(3, pointer.expand_as(moved), moved)
    return replace(graph, attributes=changed.flatten(0, 1))


def _examples(graph: SceneGraph, attribute: Tensor) -> tuple[Tensor, Tensor]:
    """Texts "what <attribute> is the <shape or colour of object 0> ?", and which are clear."""
    count, device = len(attribute), graph.device
    numbers = torch.arange(len(graph), device=device).view(count, EXAMPLES + 1)
    shown, wanted = graph[numbers[:, :EXAMPLES].flatten()], attribute.flatten()
    pointer = torch.where(wanted == SHAPE, COLOUR, SHAPE)
    phrase = torch.full((len(wanted), 4), -1, device=device)
    phrase.scatter_(1, pointer[:, None], shown.attributes[:, 0].gather(1, pointer[:, None]))
    values = could_mean(shown, phrase[:, None], wanted[:, None])[:, 0]
    description = phrase_words(phrase, naming(device), WORD_ID["thing"])
    text = _what_is(wanted, description)[:, :EXAMPLE_WORDS]
    return text.view(count, EXAMPLES, -1), (values.sum(-1) == 1).view(count, EXAMPLES)


def _questions(
    graph: SceneGraph, order: Tensor, values: Tensor, shuffle: Tensor, names: Tensor
) -> dict[str, Tensor]:
    """Fields of `Lessons`: each of the four combinations with each of the other two attributes."""
    count, device = len(order), graph.device
    scenes = torch.arange(len(graph), device=device).view(count, EXAMPLES + 1)[:, EXAMPLES]
    query = graph[scenes]
    two = torch.arange(2, device=device)
    a_value, b_value, third = torch.cartesian_prod(two, two, two).unbind(1)
    phrase = torch.full((count, QUESTIONS, 4), -1, device=device)
    for side, which in enumerate((a_value, b_value)):
        index = order[:, side, None, None].expand(-1, QUESTIONS, 1)
        phrase.scatter_(2, index, values[:, side][:, which][..., None])
    wanted = order[:, 2:][:, third]  # attribute of the answer: (lessons, questions)
    meant = matches(phrase, query)
    target = meant.to(torch.uint8).argmax(-1)
    target_values = query.attributes.gather(1, target[..., None].expand(-1, -1, 4))
    answer = target_values.gather(2, wanted[..., None])[..., 0]
    description = phrase_words(phrase, names[:, None], WORD_ID["thing"])
    # Position d holds example number `shuffle[d]` of (a1, a2, b1, b2).
    needed = torch.stack([a_value, 2 + b_value], 1)  # (questions, 2)
    needs = (shuffle[:, None, :, None] == needed[None, :, None]).any(-1)
    return {
        "text": _what_is(wanted, description),
        "needs": needs,
        "meant": target_values,
        "answer": naming(device).flatten()[wanted * 8 + answer],
        "valid": meant.sum(-1) == 1,
        "guess": _guess(query.attributes[:, :_TARGETS], wanted, answer),
    }


def _guess(objects: Tensor, wanted: Tensor, answer: Tensor) -> Tensor:
    """Probability that one of the most frequent values is the answer; (lessons, questions)."""
    index = wanted[:, None, :].expand(-1, _TARGETS, -1)
    values = objects.gather(2, index).transpose(1, 2)  # (lessons, questions, objects)
    counts = (values[..., None] == values[..., None, :]).sum(-1)
    most = counts.amax(-1)
    frequent = ((counts == most[..., None]) / counts).sum(-1)  # number of such values
    own = (values == answer[..., None]).sum(-1)
    return (own == most) / frequent


def _what_is(attribute: Int64[Tensor, "*batch"], phrase: Int64[Tensor, "*batch 4"]) -> Tensor:
    """Word ids of "what <attribute> is the <phrase> ?"; (*batch, 8)."""
    frame, names = _question_words(attribute.device)
    what, is_, the, mark = frame.expand(*attribute.shape, -1).split(1, -1)
    row = torch.cat([what, names[attribute][..., None], is_, the, phrase, mark], -1)
    return compact(row)[..., :QUESTION_WORDS]


@cache
def _question_words(device: torch.device) -> tuple[Tensor, Tensor]:
    """Word ids of "what is the ?", and of the four attributes."""
    names = [WORD_ID[name] for name in words.ATTRIBUTES]
    return torch.tensor(word_ids("what is the ?"), device=device), torch.tensor(
        names, device=device
    )
