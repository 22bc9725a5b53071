"""Photos with questions and captions, packed: one image prefix, and behind it all turns.

    columns   <image> x N | question 1, answer 1 | question 2, answer 2 | ... | padding
    turn      0           | 1                    | 2                    |     | -1

In training this is one conversation, with its turns in a new order on each access: a question comes
behind other ones each time, which keeps the model from learning answers by heart. In validation the
turns are isolated: each attends to the image and to itself, and its positions continue those of the
image. So every turn is the prompt of a single question, while the prefix is computed once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64
from PIL import ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from eligo.captions import Split, names_sides, read_karpathy
from eligo.errors import InputError
from eligo.images import open_image, side_of
from eligo.pretrained.chat import tokenize
from eligo.tokens.config import FinetuneDataConfig
from eligo.tokens.data.examples import IGNORED
from eligo.tokens.data.prompts import answer_ids, build_prompt, image_token_id, num_vision
from eligo.vqa import read_vqa_lines

CAPTION = "caption"
"""Kind of the turn that asks for a caption."""
_CACHED = 200_000  # tokenized turns


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str
    kind: str = ""


@dataclass(frozen=True)
class Photo:
    """An image file with all that is asked about it."""

    image: Path
    turns: tuple[Turn, ...]
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackedBatch:
    """Photos of one step; see the head of this file."""

    rows: Int64[Tensor, " photos"]
    """Positions of the photos in their list; a mirrored one is behind all others."""
    input_ids: Int64[Tensor, "photos length"]
    turn: Int64[Tensor, "photos length"]
    """0: prefix; 1, 2, ...: the turn; -1: padding."""
    position_ids: Int64[Tensor, "photos length"] | None
    """None: consecutive, for a conversation."""
    labels: Int64[Tensor, "photos length"]
    """The token to predict at each column; -100: none."""
    learned: Int64[Tensor, " learned"]
    """Columns with a label, counted through all rows: a GPU need not search for them."""
    pixels: Tensor | None
    """Inputs of the tower, unless features are cached."""

    def to(self, device: torch.device) -> "PackedBatch":
        """Move the tensors to a device."""
        return self._each(lambda value: value.to(device, non_blocking=True))

    def pin_memory(self) -> "PackedBatch":
        """Copy to memory from which a GPU copies without waiting; the loader calls this."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        tensors = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: change(value) for name, value in tensors.items()})

    @property
    def attention_mask(self) -> Bool[Tensor, "photos 1 length length"] | None:
        """Which columns (last axis) each column attends to, padding to itself; None: to all before.

        In a conversation no real column is behind padding.
        """
        if self.position_ids is None:
            return None
        query, key = self.turn.unsqueeze(2), self.turn.unsqueeze(1)
        order = torch.arange(self.turn.shape[1], device=self.turn.device)
        visible = ((key == query) | (key == 0)) & (key >= 0) & (order <= order.unsqueeze(1))
        return (visible | torch.eye(len(order), dtype=torch.bool, device=order.device)).unsqueeze(1)


def read_photos(config: FinetuneDataConfig, split: Split) -> list[Photo]:
    """Return the photos of a split, with questions, captions or both."""
    turns: dict[Path, list[Turn]] = {}
    if config.questions is not None:
        for row in read_vqa_lines(config.questions, config.images, split=split):
            turns.setdefault(row.image, []).append(Turn(row.question, row.answers[0], row.kind))
    captions: dict[Path, tuple[str, ...]] = {}
    if config.captions is not None:
        images = read_karpathy(config.captions, config.images).get(split, [])
        captions = {image.path: image.captions for image in images}
    paths = [*turns, *(path for path in captions if path not in turns)]
    if not paths:
        raise InputError(f"data: no photo of split {split!r} has a question or a caption")
    return [Photo(path, tuple(turns.get(path, ())), captions.get(path, ())) for path in paths]


class Conversations(Dataset):
    """Photos as token rows; caption, order and mirroring are drawn anew on each access."""

    def __init__(
        self,
        photos: Sequence[Photo],
        processor: Any,
        *,
        caption_prompt: str,
        with_pixels: bool,
        with_captions: bool = True,
        isolated: bool = True,
        flip: bool = False,
    ) -> None:
        self.photos, self.processor = photos, processor
        self.isolated, self.flip = isolated, flip
        self.caption_prompt = caption_prompt
        self.with_pixels, self.with_captions = with_pixels, with_captions
        self.side = side_of(processor)
        self.prefix = prefix_ids(processor)
        self._turn_ids = lru_cache(_CACHED)(self._encode_turn)

    def __len__(self) -> int:
        return len(self.photos)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_turn_ids"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn_ids = lru_cache(_CACHED)(self._encode_turn)

    def __getitem__(self, index: int) -> tuple[int, list[tuple[list[int], int]], Tensor | None]:
        """Return the row, token ids and answer length of every turn, and pixels."""
        turns = self.turns(index)
        can_flip = self.flip and not _names_sides(self.photos[index])
        mirrored = can_flip and bool(torch.rand(()) < 0.5)
        row = index + mirrored * len(self.photos)
        return (
            row,
            [self._turn_ids(turn.question, turn.answer) for turn in turns],
            self.pixels(row) if self.with_pixels else None,
        )

    def turns(self, index: int) -> list[Turn]:
        """Return the questions, and one caption if there are any, in the order to be packed."""
        photo = self.photos[index]
        turns = list(photo.turns)
        if photo.captions and (self.with_captions or not turns):
            chosen = int(torch.randint(len(photo.captions), ()))
            caption = photo.captions[chosen].rstrip(" .").lower()
            turns.append(Turn(self.caption_prompt, caption, CAPTION))
        if self.isolated:
            return turns
        return [turns[place] for place in torch.randperm(len(turns)).tolist()]

    @property
    def num_rows(self) -> int:
        """Number of photos, mirrored ones included."""
        return len(self.photos) * (1 + self.flip)

    def pixels(self, row: int) -> Tensor:
        """Return the input of the tower."""
        mirrored, index = divmod(row, len(self.photos))
        image = open_image(self.photos[index].image, self.side)
        if mirrored:
            image = ImageOps.mirror(image)
        return self.processor.image_processor(image, return_tensors="pt")["pixel_values"][0]

    def _encode_turn(self, question: str, answer: str) -> tuple[list[int], int]:
        prompt = build_prompt(self.processor, question)
        tail = prompt.rpartition(str(self.processor.image_token))[2]
        asked = tokenize(self.processor.tokenizer, tail, add_special_tokens=False)["input_ids"]
        spoken = answer_ids(self.processor, prompt, answer)
        return [*asked, *spoken], len(spoken)

    def collate(self, examples: Sequence[Any]) -> PackedBatch:
        """Pad rows on the right."""
        pad = self.processor.tokenizer.pad_token_id
        length = len(self.prefix) + max(sum(len(ids) for ids, _ in e[1]) for e in examples)
        shape = (len(examples), length)
        ids, labels = torch.full(shape, pad), torch.full(shape, IGNORED)
        turn, positions = torch.full(shape, -1), torch.zeros(shape, dtype=torch.int64)
        start = len(self.prefix)
        prefix = torch.tensor(self.prefix)
        for row, (_, turns, _) in enumerate(examples):
            ids[row, :start], turn[row, :start] = prefix, 0
            positions[row, :start] = torch.arange(start)
            first = start
            for number, (tokens, num_answer) in enumerate(turns, start=1):
                last = first + len(tokens)
                ids[row, first:last], turn[row, first:last] = torch.tensor(tokens), number
                positions[row, first:last] = torch.arange(start, start + len(tokens))
                # The column before a token predicts it.
                labels[row, last - num_answer - 1 : last - 1] = torch.tensor(tokens[-num_answer:])
                first = last
        pixels = None
        if examples[0][2] is not None:
            pixels = torch.stack([example[2] for example in examples])
        rows = torch.tensor([example[0] for example in examples])
        positions = positions if self.isolated else None
        learned = (labels.flatten() != IGNORED).nonzero().flatten()
        return PackedBatch(rows, ids, turn, positions, labels, learned, pixels)


def _names_sides(photo: Photo) -> bool:
    texts = [
        *photo.captions,
        *(text for turn in photo.turns for text in (turn.question, turn.answer)),
    ]
    return any(map(names_sides, texts))


def prefix_ids(processor: Any) -> list[int]:
    """Return the tokens up to the end of the image, which all prompts share."""
    prompt = build_prompt(processor, "?")
    before = prompt.partition(str(processor.image_token))[0]
    head = tokenize(processor.tokenizer, before)["input_ids"] if before else []
    if not before and (bos := getattr(processor.tokenizer, "bos_token_id", None)) is not None:
        bare = tokenize(processor.tokenizer, "?")["input_ids"]
        head = [bos] if bare[:1] == [bos] else []
    return [*head, *[image_token_id(processor)] * num_vision(processor)]
