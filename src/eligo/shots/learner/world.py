"""The learner's world: a pool of examples and queries, embedded by the learner itself.

A domain is a lexicon. 16 lessons share it, so it has 64 examples and up to 128 questions on 16
scenes. Embeddings are the mean of an image's projected patches and the mean of a text's word
vectors (question and answer of an example, question alone of a query).

Every example and every query is a block of a prompt. The vectors of all blocks are in one table
(words, then patches), and a block is a run of its rows: see `scoring`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo.errors import InputError
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import Split
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm import ASSISTANT, BOS, FIRST_WORD, USER, pixel_values
from eligo.shots.learner.lessons import EXAMPLES, QUESTIONS, Lessons, draw_lessons
from eligo.shots.learner.load import UNCLEAR
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import shuffled

PER_LEXICON = 16
FIRST_LEXICON = 1 << 24
"""Lexicons before it are for training the learner, so worlds never share any with it."""
_CHUNK = 32  # lessons encoded together


@dataclass(frozen=True, eq=False)
class Blocks:
    """Parts of prompts: `<s>`, then every example, then every query up to its answer."""

    vectors: Float[Tensor, "vectors width"]
    """Of all words, then of all patches of all scenes."""
    rows: Int64[Tensor, " tokens"]
    """Index of each token's vector, block after block."""
    starts: Int64[Tensor, " blocks"]
    lengths: Int64[Tensor, " blocks"]


@dataclass(frozen=True, eq=False)
class LearnerWorld:
    """Examples and queries of some lexicons."""

    pool: Pool
    queries: Pool
    blocks: Blocks
    answers: Int64[Tensor, " queries"]
    """Token of each query's answer."""
    guess: Float[Tensor, " queries"]
    """Accuracy of a guess from the query's scene without knowing its words."""

    def draw(self, count: int, spare: int = 0) -> tuple[Tensor, Tensor]:
        """Draw rows of `count` queries per lexicon, and of `spare` others of the same lexicons."""
        members: dict[str | None, list[int]] = {}
        assert self.queries.domains is not None
        for row, domain in enumerate(self.queries.domains):
            members.setdefault(domain, []).append(row)
        fewest = min(map(len, members.values()))
        if count + spare > fewest:
            raise InputError(
                f"got {count} + {spare} queries per lexicon, expected at most {fewest}, the size "
                "of the smallest lexicon"
            )
        # The text seeds the draw: it must stay as it is for the same queries.
        orders = [
            shuffled(torch.tensor(rows), 0, f"exam {domain}") for domain, rows in members.items()
        ]
        return (
            torch.cat([order[:count] for order in orders]),
            torch.cat([order[count : count + spare] for order in orders]),
        )


@torch.no_grad()
def make_world(
    model: Any,
    scenes: SceneConfig,
    split: Split,
    num_lexicons: int,
    *,
    first: int = FIRST_LEXICON,
    unclear: float = UNCLEAR,
) -> LearnerWorld:
    """Build the world of lexicons `first` to `first + num_lexicons`, encoded by a LLaVA."""
    begin, end = first * PER_LEXICON, (first + num_lexicons) * PER_LEXICON
    examples: list[_Item] = []
    queries: list[_Item] = []
    guess: list[Tensor] = []
    vision: list[Tensor] = []
    for start in range(begin, end, _CHUNK):
        indices = torch.arange(start, min(start + _CHUNK, end))
        lessons = draw_lessons(
            scenes, split, indices, model.device, unclear=unclear, per_lexicon=PER_LEXICON
        )
        vision.append(project_images(model, pixel_values(lessons.rendered.rgb)))
        guess.append(lessons.guess[lessons.valid].cpu())
        _add_items(lessons, split, start, begin, examples, queries)
    table, patches = model.model.language_model.embed_tokens.weight, torch.cat(vision)
    pooled, words = patches.mean(1).float().cpu(), table.float().cpu()
    return LearnerWorld(
        _pool(examples, pooled, words, with_answer=True),
        _pool(queries, pooled, words, with_answer=False),
        _blocks(examples, queries, table, patches),
        torch.tensor([item.answer for item in queries]) + FIRST_WORD,
        torch.cat(guess),
    )


def project_images(model: Any, pixels: Tensor) -> Float[Tensor, "images patches width"]:
    """Return what the language model reads of each image."""
    output = model.model.vision_tower(pixels.to(model.dtype), output_hidden_states=True)
    return model.model.multi_modal_projector(output.hidden_states[-2][:, 1:])


class _Item(NamedTuple):
    """A row of a pool: an example or a query."""

    id: str
    domain: str
    scene: int
    words: list[int]
    answer: int


def _add_items(
    lessons: Lessons, split: Split, start: int, begin: int, examples: list[_Item],
    queries: list[_Item],
) -> None:  # fmt: skip
    """Append the examples and valid questions of lessons `start`, `start + 1`, ..."""
    example_text, example_word = lessons.example_text.tolist(), lessons.example_word.tolist()
    text, answer, valid = lessons.text.tolist(), lessons.answer.tolist(), lessons.valid.tolist()
    for row in range(len(lessons)):
        lesson = start + row
        name, domain = f"{split} {lesson}", f"{split} {lesson // PER_LEXICON}"
        scene = (lesson - begin) * (EXAMPLES + 1)
        for n in range(EXAMPLES):
            words = [word for word in example_text[row][n] if word >= 0]
            item = _Item(f"{name} example {n}", domain, scene + n, words, example_word[row][n])
            examples.append(item)
        for n in range(QUESTIONS):
            if valid[row][n]:
                words = [word for word in text[row][n] if word >= 0]
                item = _Item(
                    f"{name} question {n}", domain, scene + EXAMPLES, words, answer[row][n]
                )
                queries.append(item)


def _pool(items: Sequence[_Item], pooled: Tensor, table: Tensor, *, with_answer: bool) -> Pool:
    texts = [_tokens([*item.words, item.answer] if with_answer else item.words) for item in items]
    views = {
        "image": pooled[[item.scene for item in items]],
        "text": torch.stack([table[tokens].mean(0) for tokens in texts]),
    }
    return Pool(
        [item.id for item in items],
        views,
        [f"scene {item.scene}" for item in items],
        [{"question": to_text(item.words), "answer": VOCABULARY[item.answer]} for item in items],
        domains=[item.domain for item in items],
    )


def _blocks(
    examples: Sequence[_Item], queries: Sequence[_Item], table: Tensor, patches: Tensor
) -> Blocks:
    num_words, num_patches = len(table), patches.shape[1]

    def block(item: _Item, answer: Sequence[int]) -> list[int]:
        first = num_words + item.scene * num_patches
        image = range(first, first + num_patches)
        return [USER, *image, *_tokens(item.words), ASSISTANT, *_tokens(answer)]

    parts = [[BOS], *(block(item, [item.answer]) for item in examples)]
    parts += [block(item, []) for item in queries]
    lengths, device = torch.tensor([len(part) for part in parts]), table.device
    return Blocks(
        torch.cat([table.detach().float(), patches.flatten(0, 1).float()]),
        torch.tensor([row for part in parts for row in part], device=device),
        (lengths.cumsum(0) - lengths).to(device),
        lengths.to(device),
    )


def _tokens(words: Sequence[int]) -> list[int]:
    return [index + FIRST_WORD for index in words]
