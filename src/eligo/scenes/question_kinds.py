"""Families and kinds of questions, their answers and wording."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from eligo.scenes import words
from eligo.scenes.phrases import WORD_ID, compact, naming, phrase_words, relation_words, to_text

FAMILIES = ("lookup", "existence", "count", "comparison", "relation", "location")

_YES_NO = ("yes", "no")
_COUNTS = ("0", "1", "2", "3", "4")
_QUARTERS = ("top left", "top right", "bottom left", "bottom right")
_ORDINALS = ("first", "second", "third", "fourth")
ANSWERS = (*_YES_NO, *_COUNTS, *_QUARTERS, *_ORDINALS, *(n for v in words.VALUES for n in v))
ANSWER_ID = {answer: index for index, answer in enumerate(ANSWERS)}
YES, NO = ANSWER_ID["yes"], ANSWER_ID["no"]


class Kind(NamedTuple):
    """A kind of question: its family, its wording, and the answers it can have."""

    name: str
    family: str
    text: str
    answers: tuple[str, ...]


# In the texts A and B are phrases, As and Bs plural ones, R a relation.
KINDS = (
    Kind("size", "lookup", "what size is the A ?", words.SIZES),
    Kind("colour", "lookup", "what colour is the A ?", words.COLOURS),
    Kind("texture", "lookup", "what texture has the A ?", words.TEXTURES),
    Kind("shape", "lookup", "what shape is the A ?", words.SHAPES),
    Kind("existence", "existence", "is there any A ?", _YES_NO),
    Kind("count", "count", "how many As are there ?", _COUNTS),
    Kind("more", "comparison", "are there more As than Bs ?", _YES_NO),
    Kind("same size", "comparison", "do the A and the B have the same size ?", _YES_NO),
    Kind("same colour", "comparison", "do the A and the B have the same colour ?", _YES_NO),
    Kind("same texture", "comparison", "do the A and the B have the same texture ?", _YES_NO),
    Kind("larger", "comparison", "is the A larger than the B ?", _YES_NO),
    Kind("smaller", "comparison", "is the A smaller than the B ?", _YES_NO),
    Kind("relation", "relation", "is the A R the B ?", _YES_NO),
    Kind("quarter", "location", "in which quarter is the A ?", _QUARTERS),
    Kind("column", "location", "in which column is the A ?", _ORDINALS),
    Kind("row", "location", "in which row is the A ?", _ORDINALS),
)
KIND_ID = {kind.name: index for index, kind in enumerate(KINDS)}
FAMILY_OF = tuple(FAMILIES.index(kind.family) for kind in KINDS)
CHANCE = tuple(1 / len(kind.answers) for kind in KINDS)

_LENGTH = 20  # words of the longest question


@dataclass(frozen=True)
class Questions:
    """Questions on a batch of scenes; answer -1 marks a slot without a question."""

    kind: Int64[Tensor, "scenes questions"]
    first: Int64[Tensor, "scenes questions 4"]
    second: Int64[Tensor, "scenes questions 4"]
    relation: Int64[Tensor, "scenes questions"]
    answer: Int64[Tensor, "scenes questions"]
    """Index into ANSWERS, or -1."""
    deciding: Bool[Tensor, "scenes questions slots"]
    """The objects that decide the answer."""
    words: Int64[Tensor, "scenes questions length"]
    """Word ids, -1 after the end."""

    @property
    def valid(self) -> Bool[Tensor, "scenes questions"]:
        """Where there is a question."""
        return self.answer >= 0

    def text(self, scene: int, question: int) -> str:
        """Return the question as text."""
        return to_text(self.words[scene, question].tolist())

    def answer_text(self, scene: int, question: int) -> str:
        """Return the answer as text."""
        return ANSWERS[int(self.answer[scene, question])]


@cache
def _templates(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return per kind the word ids (-2 - slot for words to fill in), and whether it is plural."""
    table = torch.full((len(KINDS), _LENGTH), -1)
    plural = torch.zeros(len(KINDS), dtype=torch.bool)
    for row, kind in enumerate(KINDS):
        ids: list[int] = []
        for word in kind.text.split():
            if word in ("A", "B", "As", "Bs"):
                start = 4 * "AB".index(word[0])
                ids += [-2 - slot for slot in range(start, start + 4)]
                plural[row] |= word.endswith("s")
            elif word == "R":
                ids += [-2 - 8, -2 - 9]
            else:
                ids.append(WORD_ID[word])
        table[row, : len(ids)] = torch.tensor(ids)
    return table.to(device), plural.to(device)


def question_words(
    questions: Questions, names: Int64[Tensor, "*tables 4 8"] | None = None
) -> Int64[Tensor, "scenes questions length"]:
    """Return the word ids of the questions; `names` replaces the words of attribute values."""
    device = questions.kind.device
    table, plural = _templates(device)
    many = plural[questions.kind][..., None]
    filled = []
    if names is None:
        names = naming(device)
    plurals = torch.where(names == naming(device), naming(device, plural=True), names)
    for phrase in (questions.first, questions.second):
        singular = phrase_words(phrase, names, WORD_ID["thing"])
        plural_words = phrase_words(phrase, plurals, WORD_ID["things"])
        filled.append(torch.where(many, plural_words, singular))
    filled.append(relation_words(device)[questions.relation])
    slots = torch.cat(filled, -1)  # (scenes, questions, 10)
    ids = table[questions.kind]
    chosen = slots.gather(-1, (-2 - ids).clamp(min=0))
    ids = torch.where(ids <= -2, chosen, ids)
    ids = torch.where((questions.answer >= 0)[..., None], ids, -1)
    return compact(ids)
