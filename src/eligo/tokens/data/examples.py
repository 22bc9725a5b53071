"""Examples to train and judge a pruner with: a question on an image, and what is right.

From the embedded world (with the objects that decide the answer, for the oracle) or from files; a
`Collator` makes batches of them with the host's own processor. Rows are padded on the left, and the
answer, where there is one, stands at the right end: labels and question mask never overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eligo.errors import InputError
from eligo.images import open_image, side_of, upright_rgb
from eligo.scenes.config import SceneConfig
from eligo.scenes.dataset import scene_id
from eligo.scenes.graph import Split, draw_scenes
from eligo.scenes.painter import Rendered, render
from eligo.scenes.question_kinds import FAMILIES, KINDS
from eligo.scenes.questions import draw_questions
from eligo.tokens.data.prompts import answer_ids, build_prompt, encode, image_token_id
from eligo.vqa import VqaExample, usual_answer

IGNORED = -100
"""Label of whatever is not to be learnt."""
GRID = 24
"""Vision tokens a side of the shipped host."""
_TRIES = 4  # questions drawn per scene, to find one of the wanted family
_SURE = "existence"  # the family that every scene has a question of


@dataclass(frozen=True)
class TokenExample:
    """A question on an image."""

    id: str
    image: UInt8[Tensor, "3 height width"] | Image.Image
    question: str
    answers: tuple[str, ...]
    """One per annotator."""
    family: str = ""
    """Of the scenes: one of `FAMILIES`; of files: whatever they call the kind of question."""
    kind: str = ""
    deciding: Bool[Tensor, "rows columns"] | None = None
    """Vision tokens that show an object one must see to answer; None where nobody knows."""
    held_out: bool = False
    """Whether such an object has a colour-shape pair unknown from training."""

    @property
    def answer(self) -> str:
        """What to learn: the usual answer."""
        return usual_answer(self.answers)


class SceneExamples(Dataset[TokenExample]):
    """One question on each of the first `size` scenes of a split, the families in turn.

    A few scenes in a hundred have no question of the family whose turn it is; they get one on
    existence. Every example is a pure function of (config, split, index).

    >>> example = SceneExamples(SceneConfig(), "train", 100)[2]
    >>> example.family, tuple(example.deciding.shape)
    ('count', (24, 24))
    """

    def __init__(
        self,
        config: SceneConfig,
        split: Split,
        size: int,
        *,
        families: tuple[str, ...] = FAMILIES,
        grid: tuple[int, int] = (GRID, GRID),
        device: torch.device | str = "cpu",
    ) -> None:
        """`grid` are rows and columns of the host's vision tokens; images stay on `device`."""
        if size < 1:
            raise InputError(f"expected at least one example, got size {size}")
        self.config, self.size, self.families, self.grid = config, size, families, grid
        self.split: Split = split
        self.device = torch.device(device)
        draw_questions(draw_scenes(config, split, range(1)), 1, families)  # mistakes show here

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> TokenExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[TokenExample]:
        """Many at once, which is much faster; a loader calls this one."""
        wrong = [index for index in indices if not 0 <= index < self.size]
        if wrong:
            raise IndexError(f"example {wrong[0]} of {self.size}")
        turns = len(self.families)
        order = sorted(range(len(indices)), key=lambda place: indices[place] % turns)
        wanted = torch.tensor([indices[place] for place in order])
        rendered = render(draw_scenes(self.config, self.split, wanted, self.device))
        examples: dict[int, TokenExample] = {}
        first = 0
        for turn, family in enumerate(self.families):
            last = first + int((wanted % turns == turn).sum())
            if last > first:
                made = self._ask(rendered[slice(first, last)], family)
                examples |= dict(zip(order[first:last], made, strict=True))
            first = last
        return [examples[place] for place in range(len(indices))]

    def _ask(self, rendered: Rendered, family: str) -> list[TokenExample]:
        """One question of the family on every scene."""
        graph = rendered.graph
        asked = draw_questions(graph, _TRIES, (family,))
        spare = None if asked.valid.any(-1).all() else draw_questions(graph, _TRIES, (_SURE,))
        examples = []
        for row, index in enumerate(graph.indices.tolist()):
            found = asked if spare is None or asked.valid[row].any() else spare
            place = int(found.valid[row].int().argmax())
            kind = KINDS[int(found.kind[row, place])]
            deciding = found.deciding[row, place]
            examples.append(
                TokenExample(
                    id=f"{scene_id(self.split, index)}_{kind.family}",
                    image=rendered.rgb[row],
                    question=found.text(row, place),
                    answers=(found.answer_text(row, place),),
                    family=kind.family,
                    kind=kind.name,
                    deciding=_shown(rendered.instances[row], deciding, self.grid),
                    held_out=bool((deciding & graph.held_out[row]).any()),
                )
            )
        return examples


def _shown(
    instances: UInt8[Tensor, "height width"],
    objects: Bool[Tensor, " slots"],
    grid: tuple[int, int],
) -> Bool[Tensor, "rows columns"]:
    """Tokens with at least one pixel of one of the objects."""
    is_one = torch.nn.functional.pad(objects, (1, 0))[instances.long()]  # 0 is the room
    return torch.nn.functional.adaptive_max_pool2d(is_one[None].float(), grid)[0] > 0


class FileExamples(Dataset[TokenExample]):
    """The questions of `read_vqa` or `read_vqa_lines`; images are opened when they are needed."""

    def __init__(self, rows: Sequence[VqaExample], side: int | None = None) -> None:
        """`side`: pixels a side that the host looks at; see `open_image`."""
        if not rows:
            raise InputError("expected at least one question, got none")
        self.rows, self.side = tuple(rows), side

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> TokenExample:
        row = self.rows[index]
        return TokenExample(
            row.id, open_image(row.image, self.side), row.question, row.answers, row.kind, row.kind
        )


@dataclass(frozen=True)
class TokenBatch:
    """Examples as a host takes them: `model(**batch.inputs)`, `model.generate(**batch.inputs)`."""

    examples: tuple[TokenExample, ...]
    inputs: dict[str, Tensor]
    """What the processor made, padded on the left; with the answers at the end, if asked for."""
    question_mask: Bool[Tensor, "batch length"]
    """The text of the prompt: no vision tokens, no padding, never an answer."""
    labels: Int64[Tensor, "batch length"] | None
    """Token ids of the answer and of the end of text, -100 elsewhere; None without answers."""
    scene: Bool[Tensor, "batch tokens"] | None
    """Vision tokens that decide the answer, in raster order; None unless all examples know."""

    @property
    def answer_mask(self) -> Bool[Tensor, "batch length"]:
        """Where the answers are."""
        if self.labels is None:
            return torch.zeros_like(self.question_mask)
        return self.labels != IGNORED

    @property
    def num_text(self) -> Int[Tensor, " batch"]:
        """Prompt tokens of each row that are not vision tokens."""
        return self.question_mask.sum(-1)

    def to(self, device: torch.device | str) -> "TokenBatch":
        """The same batch on another device (the images in `examples` stay)."""
        return replace(
            self,
            inputs={name: value.to(device) for name, value in self.inputs.items()},
            question_mask=self.question_mask.to(device),
            labels=None if self.labels is None else self.labels.to(device),
            scene=None if self.scene is None else self.scene.to(device),
        )


class Collator:
    """From examples to a batch, with the processor of the host.

    >>> batch = Collator(processor)(examples)  # to generate; doctest: +SKIP
    >>> batch = Collator(processor, answers=True)(examples)  # to train; doctest: +SKIP
    """

    def __init__(self, processor: Any, *, answers: bool = False, instruction: str = "") -> None:
        """`instruction` is put behind every question, such as "Answer in one word."."""
        self.processor, self.answers, self.instruction = processor, answers, instruction
        self.side = side_of(processor)
        self.image_token_id = image_token_id(processor)
        self._known: set[str] = set()  # answers that have tokens

    def __call__(self, examples: Sequence[TokenExample]) -> TokenBatch:
        """One row for each example; large images are made smaller, as `open_image` does."""
        examples = [self._bounded(example) for example in examples]
        prompts = [self._prompt(example) for example in examples]
        encoded = encode(self.processor, [example.image for example in examples], prompts)
        ends = [
            answer_ids(self.processor, prompt, example.answer) if self.answers else []
            for prompt, example in zip(prompts, examples, strict=True)
        ]
        ids, real = encoded["input_ids"], encoded["attention_mask"].bool()
        question = real & (ids != self.image_token_id)
        per_token = {n: v for n, v in encoded.items() if v.shape == ids.shape}
        others = {n: v for n, v in encoded.items() if n not in per_token}
        pad = self.processor.tokenizer.pad_token_id or 0
        device = ids.device

        def extended(value: Tensor, filling: int, said: list[list[int]]) -> Tensor:
            rows = [
                torch.cat([row[keep], torch.tensor(end, dtype=value.dtype, device=device)])
                for row, keep, end in zip(value, real, said, strict=True)
            ]
            return _left_padded(rows, filling)

        def constant(filling: int) -> list[list[int]]:
            return [[filling] * len(end) for end in ends]

        # PaliGemma calls what follows the prompt type 1; for others an answer is plain text.
        endings = {"input_ids": ends, "attention_mask": constant(1), "token_type_ids": constant(1)}
        inputs = {
            name: extended(value, pad if name == "input_ids" else 0, endings.get(name, constant(0)))
            for name, value in per_token.items()
        }
        nothing = torch.full_like(ids, IGNORED)
        return TokenBatch(
            tuple(examples),
            {**others, **inputs},
            question_mask=extended(question.long(), 0, constant(0)).bool(),
            labels=extended(nothing, IGNORED, ends) if self.answers else None,
            scene=_scene(examples, device),
        )

    def check(self, question: str, answer: str) -> None:
        """Raise what a batch with this text would; without an image, and quick."""
        if answer not in self._known:
            answer_ids(self.processor, build_prompt(self.processor, "?"), answer)
            self._known.add(answer)
        for name in ("image_token", "boi_token", "video_token"):
            sign = str(getattr(self.processor, name, None) or "")
            if sign and sign in question and self._adds(question, sign):
                raise InputError(
                    f"{question!r:.80} holds {sign}, where the host would look for another image; "
                    "expected words: leave it out"
                )

    def _adds(self, question: str, sign: str) -> bool:
        """Whether a sign of the question is still there in the prompt."""
        asked, bare = (build_prompt(self.processor, text) for text in (question, "?"))
        return asked.count(sign) > bare.count(sign)

    def _bounded(self, example: TokenExample) -> TokenExample:
        if not isinstance(example.image, Image.Image):
            return example
        return replace(example, image=upright_rgb(example.image, self.side))

    def _prompt(self, example: TokenExample) -> str:
        if not example.question.strip():
            raise InputError(f"example {example.id}: the question is empty")
        question = f"{example.question} {self.instruction}".strip()
        return build_prompt(self.processor, question)


def _scene(
    examples: Sequence[TokenExample], device: torch.device
) -> Bool[Tensor, "batch tokens"] | None:
    masks = [example.deciding for example in examples]
    known = [mask.flatten().to(device) for mask in masks if mask is not None]
    return torch.stack(known) if len(known) == len(masks) else None


def _left_padded(rows: list[Tensor], filling: int) -> Tensor:
    length = max(map(len, rows))
    return torch.stack(
        [torch.nn.functional.pad(row, (length - len(row), 0), value=filling) for row in rows]
    )
