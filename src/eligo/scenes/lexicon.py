"""Lexicons: nonce words for attribute values, new for every prompt.

In one lexicon "dax" may mean red, in the next one striped; only an example in the prompt defines
it. An example answers a plain question with one nonce word ("what colour is the ball?" "dax"), and
is unambiguous only if all balls of its scene have the same colour.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.scenes import draws, words
from eligo.scenes.graph import SceneGraph, Split, split_keys
from eligo.scenes.phrases import VOCABULARY, WORD_ID, check_askable, matches
from eligo.scenes.words import COLOUR, SHAPE

_SIZES = tuple(len(values) for values in words.VALUES)


@dataclass(frozen=True)
class Lexicon:
    """A batch of lexicons: every attribute value has a nonce word of its own."""

    indices: Int64[Tensor, " lexicons"]
    names: Int64[Tensor, "lexicons 4 8"]
    """Word id of every attribute value, -1 pads. For questions on many scenes that share, or each
    have, a lexicon: `draw_questions(..., names=lexicon.names[:, None])`."""

    def word(self, lexicon: int, attribute: int, value: int) -> str:
        """Return the word for a value: `lexicon.word(0, words.COLOUR, 0)`."""
        return VOCABULARY[int(self.names[lexicon, attribute, value])]


def draw_lexicons(
    seed: int,
    split: Split,
    indices: Int64[Tensor, " lexicons"] | range,
    device: torch.device | str = "cpu",
) -> Lexicon:
    """Draw the lexicons with these indices of a split.

    >>> draw_lexicons(0, "train", range(2)).names.shape
    torch.Size([2, 4, 8])
    """
    indices, key = split_keys(seed, split, indices, device)
    nonce = torch.tensor([WORD_ID[word] for word in words.NONCE], device=device)
    chosen = nonce[draws.permutations(key, "lexicon", len(nonce))[:, : sum(_SIZES)]]
    parts = [
        torch.nn.functional.pad(part, (0, 8 - part.shape[1]), value=-1)
        for part in chosen.split(_SIZES, dim=1)
    ]
    return Lexicon(indices, torch.stack(parts, 1))


def could_mean(
    graph: SceneGraph,
    phrase: Int64[Tensor, "scenes examples 4"],
    attribute: Int64[Tensor, "scenes examples"],
) -> Bool[Tensor, "scenes examples 8"]:
    """Return the possible meanings of the answer to "what <attribute> is the <phrase>?".

    These are the values of the attribute of all objects that match the phrase. The example is
    unambiguous if there is exactly one value, and invalid if there is none.
    """
    check_askable(graph, "examples")
    match = matches(phrase, graph)  # (scenes, examples, slots)
    index = attribute[:, :, None].expand(-1, -1, match.shape[-1])
    values = graph.attributes.transpose(1, 2).gather(1, index)
    return (torch.nn.functional.one_hot(values, 8).bool() & match[..., None]).any(2)


def teaches(graph: SceneGraph) -> Bool[Tensor, "scenes slots 4"]:
    """Return which attributes of each object an example can define when it names the object by its
    shape alone (for the shape itself, by its colour): all objects of that name share the value."""
    attribute = torch.arange(4, device=graph.device)
    pointer = torch.where(attribute == SHAPE, COLOUR, SHAPE)
    named = torch.nn.functional.one_hot(pointer, 4).bool()  # (attribute, attributes)
    phrase = torch.where(named, graph.attributes[:, :, None], -1)  # (scenes, slots, attribute, 4)
    attribute = attribute.expand(*phrase.shape[:2], -1)
    is_clear = could_mean(graph, phrase.flatten(1, 2), attribute.flatten(1)).sum(-1) == 1
    return is_clear.view(attribute.shape) & graph.askable[..., None]
