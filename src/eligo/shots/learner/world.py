"""The exam's pool and queries, seen by the learner that judges them. Section 6.

A domain is a lexicon: 16 lessons share it, so it has 64 examples and up to 128 questions on 16
scenes. Embeddings are the learner's own: the mean of an image's projected patches, the mean of a
text's word vectors (question and answer of an example, question alone of a query).

Every example and every query is a block of a prompt. All vectors that blocks are made of lie in one
table (words, then patches), a block is a run of its rows: see `scoring`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import Split
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm import ASSISTANT, BOS, FIRST_WORD, USER, pixel_values
from eligo.shots.learner.lessons import EXAMPLES, QUESTIONS, Lessons, draw_lessons
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import shuffled

PER_LEXICON = 16
FIRST_LEXICON = 1 << 24
"""Of the exam: the learner's own lessons come before it and never get there."""
_CHUNK = 32  # lessons looked at together


@dataclass(frozen=True, eq=False)
class Blocks:
    """Parts of prompts: `<s>`, then every example, then every query up to its answer."""

    vectors: Float[Tensor, "vectors width"]
    """Of all words, then of all patches of all scenes."""
    rows: Int64[Tensor, " tokens"]
    """Which vector stands at each place of the blocks, one block behind the other."""
    starts: Int64[Tensor, " blocks"]
    lengths: Int64[Tensor, " blocks"]


@dataclass(frozen=True, eq=False)
class ExamWorld:
    """Examples and questions of some lexicons."""

    pool: Pool
    queries: Pool
    blocks: Blocks
    answers: Int64[Tensor, " queries"]
    """Token of each query's answer."""
    guess: Float[Tensor, " queries"]
    """Chance of who sees the query's scene and knows no word."""

    def draw(self, count: int, spare: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Rows of so many queries of each lexicon, and of others of the same lexicons."""
        members: dict[str | None, list[int]] = {}
        assert self.queries.domains is not None
        for row, domain in enumerate(self.queries.domains):
            members.setdefault(domain, []).append(row)
        fewest = min(map(len, members.values()))
        if count + spare > fewest:
            raise InputError(
                f"got {count} + {spare} queries of each lexicon, expected at most {fewest}, as "
                "many as the smallest has"
            )
        orders = [
            shuffled(torch.tensor(rows), seed, f"exam {domain}") for domain, rows in members.items()
        ]
        asked, others = (
            torch.cat([order[part] for order in orders])
            for part in (slice(count), slice(count, count + spare))
        )
        return asked, others


@torch.no_grad()
def make_world(
    model: Any,
    scenes: SceneConfig,
    split: Split,
    num_lexicons: int,
    *,
    first: int = FIRST_LEXICON,
    unclear: float = 0.5,
) -> ExamWorld:
    """Lexicons `first` to `first + num_lexicons` of a split, looked at by a LLaVA."""
    begin, end = first * PER_LEXICON, (first + num_lexicons) * PER_LEXICON
    made = _World(split, begin)
    seen: list[Tensor] = []
    for start in range(begin, end, _CHUNK):
        indices = torch.arange(start, min(start + _CHUNK, end))
        lessons = draw_lessons(
            scenes, split, indices, model.device, unclear=unclear, per_lexicon=PER_LEXICON
        )
        seen.append(_vision(model, lessons))
        made.add(lessons)
    return made.done(model.model.language_model.embed_tokens.weight, torch.cat(seen))


@dataclass
class _Column:
    """Rows of a pool to be."""

    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    scenes: list[int] = field(default_factory=list)
    words: list[list[int]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def add(self, name: str, domain: str, scene: int, words: list[int], answer: int) -> None:
        self.ids.append(name)
        self.domains.append(domain)
        self.scenes.append(scene)
        self.words.append([word for word in words if word >= 0])
        self.answers.append(answer)

    def pool(self, pooled: Tensor, table: Tensor, *, with_answer: bool) -> Pool:
        pairs = list(zip(self.words, self.answers, strict=True))
        told = [_ids([*words, answer] if with_answer else words) for words, answer in pairs]
        views = {
            "image": pooled[self.scenes],
            "text": torch.stack([table[ids].mean(0) for ids in told]),
        }
        payload = [{"question": to_text(w), "answer": VOCABULARY[a]} for w, a in pairs]
        groups = [f"scene {scene}" for scene in self.scenes]
        return Pool(self.ids, views, groups, payload, domains=self.domains)


class _World:
    """Lessons, taken apart."""

    def __init__(self, split: Split, begin: int) -> None:
        self.split, self.begin, self.lesson = split, begin, begin
        self.shots, self.asked = _Column(), _Column()
        self.guess: list[float] = []

    def add(self, lessons: Lessons) -> None:
        example_text, example_word = lessons.example_text.tolist(), lessons.example_word.tolist()
        text, answer = lessons.text.tolist(), lessons.answer.tolist()
        valid, guess = lessons.valid.tolist(), lessons.guess.tolist()
        for row in range(len(lessons)):
            name = f"{self.split} {self.lesson}"
            domain = f"{self.split} {self.lesson // PER_LEXICON}"
            scene = (self.lesson - self.begin) * (EXAMPLES + 1)
            for n in range(EXAMPLES):
                self.shots.add(
                    f"{name} example {n}",
                    domain,
                    scene + n,
                    example_text[row][n],
                    example_word[row][n],
                )
            for n in range(QUESTIONS):
                if valid[row][n]:
                    self.asked.add(
                        f"{name} question {n}",
                        domain,
                        scene + EXAMPLES,
                        text[row][n],
                        answer[row][n],
                    )
                    self.guess.append(guess[row][n])
            self.lesson += 1

    def done(self, table: Tensor, vision: Float[Tensor, "scenes patches width"]) -> ExamWorld:
        pooled, words = vision.mean(1).float().cpu(), table.float().cpu()
        num_words, patches = len(table), vision.shape[1]

        def block(column: _Column, row: int, said: list[int]) -> list[int]:
            first = num_words + column.scenes[row] * patches
            return [
                USER, *range(first, first + patches), *_ids(column.words[row]), ASSISTANT, *said
            ]  # fmt: skip

        shots = [
            block(self.shots, row, _ids([word])) for row, word in enumerate(self.shots.answers)
        ]
        queries = [block(self.asked, row, []) for row in range(len(self.asked.ids))]
        parts = [[BOS], *shots, *queries]
        lengths = torch.tensor([len(part) for part in parts])
        device = table.device
        blocks = Blocks(
            torch.cat([table.detach().float(), vision.flatten(0, 1).float()]),
            torch.tensor([row for part in parts for row in part], device=device),
            (lengths.cumsum(0) - lengths).to(device),
            lengths.to(device),
        )
        return ExamWorld(
            self.shots.pool(pooled, words, with_answer=True),
            self.asked.pool(pooled, words, with_answer=False),
            blocks,
            torch.tensor(self.asked.answers) + FIRST_WORD,
            torch.tensor(self.guess),
        )


def _ids(words: Sequence[int]) -> list[int]:
    return [index + FIRST_WORD for index in words]


def _vision(model: Any, lessons: Lessons) -> Float[Tensor, "scenes patches width"]:
    """What the language model reads of each scene."""
    pixels = pixel_values(lessons.rendered.rgb).to(model.dtype)
    seen = model.model.vision_tower(pixels, output_hidden_states=True)
    return model.model.multi_modal_projector(seen.hidden_states[-2][:, 1:])
