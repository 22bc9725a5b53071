"""Examples (a question on an image, with answers) and their batches.

Examples come from generated scenes (with the objects that decide the answer, for the oracle) or
from files; a `Collator` batches them with the processor of the host. Rows are padded on the left
and end with the answer, if there is one; labels and question mask never overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from eligo.errors import InputError
from eligo.images import open_image, side_of, upright_rgb
from eligo.pretrained.chat import tokenize
from eligo.scenes.config import SceneConfig
from eligo.scenes.dataset import scene_id
from eligo.scenes.graph import Split, draw_scenes
from eligo.scenes.painter import Rendered, render
from eligo.scenes.question_kinds import FAMILIES, KINDS
from eligo.scenes.questions import draw_questions
from eligo.tokens.data.prompts import (
    answer_ids,
    build_prompt,
    encode,
    has_fixed_grid,
    image_token_id,
)
from eligo.vqa import VqaExample, usual_answer

IGNORED = -100
"""Label of tokens without loss."""
GRID = 24
"""Side of the token grid of the shipped host."""
_TRIES = 4  # questions drawn per scene, to find one of the wanted family
_FALLBACK = "existence"  # the family that every scene has a question of


@dataclass(frozen=True)
class TokenExample:
    """A question on an image."""

    id: str
    image: UInt8[Tensor, "3 height width"] | Image.Image
    question: str
    answers: tuple[str, ...]
    """One per annotator."""
    family: str = ""
    """For scenes one of `FAMILIES`; for files their kind of question."""
    kind: str = ""
    deciding: Bool[Tensor, "rows columns"] | None = None
    """Vision tokens of the objects that decide the answer; None: unknown."""
    held_out: bool = False
    """Whether such an object has a colour-shape pair that training never shows."""

    @property
    def answer(self) -> str:
        """The usual answer, for training."""
        return usual_answer(self.answers)


class SceneExamples(Dataset[TokenExample]):
    """One question on each of the first `size` scenes of a split, from all families in turn.

    The few scenes without a question of the family get one on existence. Every example is a pure
    function of (config, split, index).

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
        """`grid`: rows and columns of the vision tokens of the host; images stay on `device`."""
        if size < 1:
            raise InputError(f"expected at least one example, got size {size}")
        self.config, self.size, self.families, self.grid = config, size, families, grid
        self.split: Split = split
        self.device = torch.device(device)
        # Raises for invalid settings.
        draw_questions(draw_scenes(config, split, range(1)), 1, families)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> TokenExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[TokenExample]:
        """Return several examples at once, which is much faster; data loaders call this."""
        wrong = [index for index in indices if not 0 <= index < self.size]
        if wrong:
            raise IndexError(f"example {wrong[0]} of {self.size}")
        turns = len(self.families)
        order = sorted(range(len(indices)), key=lambda place: indices[place] % turns)
        scenes = torch.tensor([indices[place] for place in order])
        rendered = render(draw_scenes(self.config, self.split, scenes, self.device))
        examples: dict[int, TokenExample] = {}
        first = 0
        for turn, family in enumerate(self.families):
            last = first + int((scenes % turns == turn).sum())
            if last > first:
                drawn = self._questions(rendered[slice(first, last)], family)
                examples |= dict(zip(order[first:last], drawn, strict=True))
            first = last
        return [examples[place] for place in range(len(indices))]

    def _questions(self, rendered: Rendered, family: str) -> list[TokenExample]:
        """Return one question of the family on every scene."""
        graph = rendered.graph
        first = draw_questions(graph, _TRIES, (family,))
        spare = None if first.valid.any(-1).all() else draw_questions(graph, _TRIES, (_FALLBACK,))
        examples = []
        for row, index in enumerate(graph.indices.tolist()):
            drawn = first if spare is None or first.valid[row].any() else spare
            place = int(drawn.valid[row].int().argmax())
            kind = KINDS[int(drawn.kind[row, place])]
            deciding = drawn.deciding[row, place]
            examples.append(
                TokenExample(
                    id=f"{scene_id(self.split, index)}_{kind.family}",
                    image=rendered.rgb[row],
                    question=drawn.text(row, place),
                    answers=(drawn.answer_text(row, place),),
                    family=kind.family,
                    kind=kind.name,
                    deciding=_visible_tokens(rendered.instances[row], deciding, self.grid),
                    held_out=bool((deciding & graph.held_out[row]).any()),
                )
            )
        return examples


def _visible_tokens(
    instances: UInt8[Tensor, "height width"],
    objects: Bool[Tensor, " slots"],
    grid: tuple[int, int],
) -> Bool[Tensor, "rows columns"]:
    """Return the tokens with at least one pixel of one of the objects."""
    is_one = torch.nn.functional.pad(objects, (1, 0))[instances.long()]  # 0 is the background
    return torch.nn.functional.adaptive_max_pool2d(is_one[None].float(), grid)[0] > 0


class FileExamples(Dataset[TokenExample]):
    """The questions of `read_vqa` or `read_vqa_lines`; images are opened on access."""

    def __init__(self, rows: Sequence[VqaExample], side: int | None = None) -> None:
        """`side`: image side of the host in pixels; see `open_image`."""
        if not rows:
            raise InputError("expected at least one question, got none")
        self.rows, self.side = tuple(rows), side

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> TokenExample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[TokenExample]:
        """Return several examples; consecutive ones share an image. Data loaders call this."""
        examples: list[TokenExample] = []
        for path, rows in groupby((self.rows[index] for index in indices), lambda row: row.image):
            image = open_image(path, self.side)
            examples += [_of_file(row, image) for row in rows]
        return examples


def _of_file(row: VqaExample, image: Image.Image) -> TokenExample:
    return TokenExample(row.id, image, row.question, row.answers, row.kind, row.kind)


class ImageExamples(Dataset[list[TokenExample]]):
    """Several questions on each image, drawn anew on each access; the image is opened once.

    An image with fewer questions repeats some.
    """

    def __init__(self, rows: Sequence[VqaExample], count: int, side: int | None = None) -> None:
        self.count, self.side = count, side
        self.groups: dict[Path, list[VqaExample]] = {}
        for row in rows:
            self.groups.setdefault(row.image, []).append(row)
        self.images = list(self.groups)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[TokenExample]:
        path = self.images[index]
        image, rows = open_image(path, self.side), self.groups[path]
        order = torch.randperm(len(rows)).tolist()
        return [_of_file(rows[order[turn % len(rows)]], image) for turn in range(self.count)]


@dataclass(frozen=True)
class TokenBatch:
    """Inputs of a host: `model(**batch.inputs)`, `model.generate(**batch.inputs)`."""

    examples: tuple[TokenExample, ...]
    inputs: dict[str, Tensor]
    """Output of the processor, padded on the left; answers at the end, if the collator adds any."""
    question_mask: Bool[Tensor, "batch length"]
    """Text of the prompt: no vision tokens, padding or answer."""
    labels: Int64[Tensor, "batch length"] | None
    """Token ids of the answer and of the end of text, -100 elsewhere; None without answers."""
    scene: Bool[Tensor, "batch tokens"] | None
    """Vision tokens that decide the answer, in raster order; None unless known for all."""
    image_rows: Int64[Tensor, " batch"] | None = None
    """The row of pixels of each example, where some share an image; None: one each."""

    @property
    def answer_mask(self) -> Bool[Tensor, "batch length"]:
        """Which tokens belong to the answers."""
        if self.labels is None:
            return torch.zeros_like(self.question_mask)
        return self.labels != IGNORED

    @property
    def num_text(self) -> Int[Tensor, " batch"]:
        """Prompt tokens of each row that are not vision tokens."""
        return self.question_mask.sum(-1)

    def to(self, device: torch.device | str) -> "TokenBatch":
        """Move the tensors to a device, with pixels for each row; the images in `examples` stay."""
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        if self.image_rows is not None:
            inputs["pixel_values"] = inputs["pixel_values"][self.image_rows.to(device)]
        return replace(
            self,
            inputs=inputs,
            image_rows=None,
            question_mask=self.question_mask.to(device),
            labels=None if self.labels is None else self.labels.to(device),
            scene=None if self.scene is None else self.scene.to(device),
        )


class Collator:
    """Batches examples with the processor of the host.

    >>> batch = Collator(processor)(examples)  # to generate; doctest: +SKIP
    >>> batch = Collator(processor, answers=True)(examples)  # to train; doctest: +SKIP
    """

    def __init__(
        self,
        processor: Any,
        *,
        answers: bool = False,
        instruction: str = "",
        with_images: bool = True,
    ) -> None:
        """`instruction`: text after every question, such as "Answer in one word."."""
        self.processor, self.answers, self.instruction = processor, answers, instruction
        self.with_images = with_images
        self.side = side_of(processor)
        self.image_token_id = image_token_id(processor)
        self._checked: set[str] = set()  # answers that have tokens

    def __call__(
        self, examples: Sequence[TokenExample], *, share_images: bool = False
    ) -> TokenBatch:
        """Return one row per example; large images are downscaled as in `open_image`.

        `share_images`: for a LLaVA, consecutive examples on one image share a row of pixels.
        """
        image_rows = None
        if share_images and self.with_images and has_fixed_grid(self.processor):
            image_rows = _image_rows(examples)
        examples = [self._bounded(example) for example in examples]
        prompts = [self._prompt(example) for example in examples]
        if self.with_images:
            images = [example.image for example in examples]
            if image_rows is not None:
                images = [*dict(zip(image_rows, images, strict=True)).values()]
            encoded = encode(self.processor, images, prompts)
        else:
            encoded = dict(
                tokenize(self.processor.tokenizer, prompts, padding=True, return_tensors="pt")
            )
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

        def extended(value: Tensor, filling: int, added: list[list[int]]) -> Tensor:
            rows = [
                torch.cat([row[keep], torch.tensor(end, dtype=value.dtype, device=device)])
                for row, keep, end in zip(value, real, added, strict=True)
            ]
            return _left_padded(rows, filling)

        def constant(filling: int) -> list[list[int]]:
            return [[filling] * len(end) for end in ends]

        # PaliGemma gives type 1 to the tokens after the prompt.
        endings = {"input_ids": ends, "attention_mask": constant(1), "token_type_ids": constant(1)}
        inputs = {
            name: extended(value, pad if name == "input_ids" else 0, endings.get(name, constant(0)))
            for name, value in per_token.items()
        }
        ignored = torch.full_like(ids, IGNORED)
        return TokenBatch(
            tuple(examples),
            {**others, **inputs},
            question_mask=extended(question.long(), 0, constant(0)).bool(),
            labels=extended(ignored, IGNORED, ends) if self.answers else None,
            scene=_scene(examples, device),
            image_rows=None if image_rows is None else torch.tensor(image_rows),
        )

    def check(self, question: str, answer: str) -> None:
        """Raise if a batch with this text would, without an image."""
        if answer not in self._checked:
            answer_ids(self.processor, build_prompt(self.processor, "?"), answer)
            self._checked.add(answer)
        for name in ("image_token", "boi_token", "video_token"):
            token = str(getattr(self.processor, name, None) or "")
            if token and token in question and self._adds(question, token):
                raise InputError(
                    f"{question!r:.80} contains {token}, the placeholder of an image; expected "
                    "words: leave it out"
                )

    def _adds(self, question: str, token: str) -> bool:
        """Return whether the prompt has more of these placeholders because of the question."""
        prompt, bare = (build_prompt(self.processor, text) for text in (question, "?"))
        return prompt.count(token) > bare.count(token)

    def _bounded(self, example: TokenExample) -> TokenExample:
        if not isinstance(example.image, Image.Image):
            return example
        return replace(example, image=upright_rgb(example.image, self.side))

    def _prompt(self, example: TokenExample) -> str:
        if not example.question.strip():
            raise InputError(f"example {example.id}: the question is empty")
        question = f"{example.question} {self.instruction}".strip()
        return build_prompt(self.processor, question, with_image=self.with_images)


def _image_rows(examples: Sequence[TokenExample]) -> list[int] | None:
    """Count the images through consecutive examples; None if no two share one."""
    is_new = [one.image is not other.image for one, other in pairwise(examples)]
    return None if all(is_new) else [0, *accumulate(is_new)]


def _scene(
    examples: Sequence[TokenExample], device: torch.device
) -> Bool[Tensor, "batch tokens"] | None:
    masks = [example.deciding for example in examples]
    flat = [mask.flatten().to(device) for mask in masks if mask is not None]
    return torch.stack(flat) if len(flat) == len(masks) else None


def _left_padded(rows: list[Tensor], filling: int) -> Tensor:
    length = max(map(len, rows))
    return torch.stack(
        [torch.nn.functional.pad(row, (length - len(row), 0), value=filling) for row in rows]
    )
