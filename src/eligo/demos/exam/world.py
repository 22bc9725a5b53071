"""The exam's pool and queries, and the learner that judges them. Section 6.

A domain is a lexicon: 16 lessons share it, so it has 64 examples and 128 questions on 16 scenes.
Embeddings are the learner's own: the mean of an image's projected patches, the mean of a text's
word vectors (question and answer of an example, question alone of a query).

`LearnerScorer` is the `Scorer` of a teacher without files: images were looked at once, prompts are
put together from what was seen. The same numbers as from `HostScorer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eligo.demos.data.pool import Pool
from eligo.demos.data.query import Query
from eligo.demos.exam.lessons import DEMOS, QUESTIONS, Lessons, draw_lessons
from eligo.demos.hosts.scorer import Placement, Scores, in_prompt_order
from eligo.scenes.config import SceneConfig
from eligo.scenes.graph import Split
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm.model import ASSISTANT, BOS, FIRST_WORD, USER
from eligo.scenes.vlm.train import pixel_values

PER_LEXICON = 16
_CHUNK = 32  # lessons looked at together


@dataclass(frozen=True, eq=False)
class ExamWorld:
    """Examples and questions of some lexicons, seen by a learner."""

    pool: Pool
    queries: Pool
    vision: Float[Tensor, "scenes patches width"]
    """What the language model reads of each scene."""
    texts: dict[str, list[int]]
    """Tokens of an example (question, ASSISTANT:, word) or query (question, ASSISTANT:), by id."""
    scenes: dict[str, int]
    """The scene of each."""
    answers: dict[str, int]
    """Answer token of each query."""


@torch.no_grad()
def make_world(
    model: Any,
    scenes: SceneConfig,
    split: Split,
    num_lexicons: int,
    *,
    first: int = 0,
    unclear: float = 0.5,
) -> ExamWorld:
    """Lexicons `first` to `first + num_lexicons` of a split, looked at by a LLaVA."""
    table = model.model.language_model.embed_tokens.weight.float().cpu()
    parts: list[tuple[Lessons, Tensor]] = []
    begin, end = first * PER_LEXICON, (first + num_lexicons) * PER_LEXICON
    for start in range(begin, end, _CHUNK):
        indices = torch.arange(start, min(start + _CHUNK, end))
        lessons = draw_lessons(
            scenes, split, indices, model.device, unclear=unclear, per_lexicon=PER_LEXICON
        )
        parts.append((lessons, _vision(model, lessons)))
    vision = torch.cat([seen for _, seen in parts])
    demos, asked = _Column(), _Column()
    texts: dict[str, list[int]] = {}
    places: dict[str, int] = {}
    answers: dict[str, int] = {}
    lesson = begin
    for lessons, _ in parts:
        for row in range(len(lessons)):
            scene = (lesson - begin) * (DEMOS + 1)
            domain = f"{split} {lesson // PER_LEXICON}"
            for place in range(DEMOS):
                name = f"{split} {lesson} example {place}"
                words = [int(i) for i in lessons.demo_text[row, place] if i >= 0]
                word = int(lessons.demo_word[row, place])
                demos.add(name, domain, f"scene {scene + place}", words, word)
                texts[name] = [*_ids(words), ASSISTANT, word + FIRST_WORD]
                places[name] = scene + place
            for place in range(QUESTIONS):
                if not lessons.valid[row, place]:
                    continue
                name = f"{split} {lesson} question {place}"
                words = [int(i) for i in lessons.text[row, place] if i >= 0]
                word = int(lessons.answer[row, place])
                asked.add(name, domain, f"scene {scene + DEMOS}", words, word)
                texts[name] = [*_ids(words), ASSISTANT]
                places[name], answers[name] = scene + DEMOS, word + FIRST_WORD
            lesson += 1
    pooled = vision.mean(1).float().cpu()
    pool = demos.pool(pooled, places, table, with_answer=True)
    return ExamWorld(
        pool, asked.pool(pooled, places, table, with_answer=False), vision, texts, places, answers
    )


class LearnerScorer:
    """Log-probabilities of the answers, by a learner on its own world; and what it answers."""

    def __init__(
        self,
        model: Any,
        world: ExamWorld,
        *,
        placement: Placement = "prepend",
        batch_size: int = 256,
    ) -> None:
        self.model, self.world, self.batch_size = model, world, batch_size
        self.placement: Placement = placement

    def baseline(self, query: Query) -> Scores:
        """Without any example; one value."""
        return self._scored(query, [()])

    def score(self, query: Query, prefix: Sequence[str], candidates: Sequence[str]) -> Scores:
        """`(*prefix, c)`, in order of choice, for each candidate c."""
        return self._scored(query, [(*prefix, name) for name in candidates])

    def right(self, queries: Sequence[str], picks: Sequence[Sequence[str]]) -> list[bool]:
        """Whether the likeliest answer is the right one, for queries behind their examples."""
        logits = self.logits(queries, picks)
        wanted = torch.tensor([self.world.answers[name] for name in queries])
        return (logits.argmax(-1).cpu() == wanted).tolist()

    @torch.no_grad()
    def logits(
        self, queries: Sequence[str], picks: Sequence[Sequence[str]]
    ) -> Float[Tensor, "prompts tokens"]:
        """Of the answer's token, for each query behind its examples (in order of choice)."""
        found = []
        for start in range(0, len(queries), self.batch_size):
            chosen = slice(start, start + self.batch_size)
            rows = [
                self._row(name, in_prompt_order(told, self.placement))
                for name, told in zip(queries[chosen], picks[chosen], strict=True)
            ]
            # On the left, so that every row ends where the answer begins.
            lengths = torch.tensor([len(row) for row in rows], device=self.model.device)
            inputs = pad_sequence(rows, batch_first=True, padding_side="left")
            places = torch.arange(inputs.shape[1], device=inputs.device) - (
                inputs.shape[1] - lengths[:, None]
            )
            states = self.model.model.language_model(
                inputs_embeds=inputs,
                attention_mask=(places >= 0).long(),
                position_ids=places.clamp_min(0),
                use_cache=False,
            ).last_hidden_state
            found.append(self.model.lm_head(states[:, -1]).float())
        return torch.cat(found)

    def _scored(self, query: Query, lists: Sequence[Sequence[str]]) -> Scores:
        logits = self.logits([query.id] * len(lists), lists)
        return Scores(logits.log_softmax(-1)[:, self.world.answers[query.id]].cpu(), 1)

    def _row(self, query: str, shots: Sequence[str]) -> Float[Tensor, "tokens width"]:
        """`<s>`, then USER:, image and text of each example and of the query."""
        embed, device = self.model.model.language_model.embed_tokens, self.model.device
        parts = [embed(torch.tensor([BOS], device=device))]
        for name in (*shots, query):
            seen = self.world.vision[self.world.scenes[name]]
            text = embed(torch.tensor([USER, *self.world.texts[name]], device=device))
            parts += [text[:1], seen.to(text.dtype), text[1:]]
        return torch.cat(parts)


class _Column:
    """Rows of a pool to be."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.domains: list[str] = []
        self.groups: list[str] = []
        self.words: list[list[int]] = []
        self.answers: list[int] = []

    def add(self, name: str, domain: str, group: str, words: list[int], answer: int) -> None:
        self.ids.append(name)
        self.domains.append(domain)
        self.groups.append(group)
        self.words.append(words)
        self.answers.append(answer)

    def pool(
        self, pooled: Tensor, places: dict[str, int], table: Tensor, *, with_answer: bool
    ) -> Pool:
        pairs = list(zip(self.words, self.answers, strict=True))
        told = [_ids([*words, answer] if with_answer else words) for words, answer in pairs]
        views = {
            "image": pooled[[places[name] for name in self.ids]],
            "text": torch.stack([table[ids].mean(0) for ids in told]),
        }
        payload = [{"question": to_text(w), "answer": VOCABULARY[a]} for w, a in pairs]
        return Pool(self.ids, views, self.groups, payload, domains=self.domains)


def _ids(words: Sequence[int]) -> list[int]:
    return [index + FIRST_WORD for index in words]


def _vision(model: Any, lessons: Lessons) -> Float[Tensor, "scenes patches width"]:
    """What the language model reads of each scene."""
    pixels = pixel_values(lessons.rendered.rgb).to(model.dtype)
    seen = model.model.vision_tower(pixels, output_hidden_states=True)
    return model.model.multi_modal_projector(seen.hidden_states[-2][:, 1:])
