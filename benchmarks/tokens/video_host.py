"""A tiny Qwen2.5-VL that answers questions about generated clips, trained in two minutes on a GPU.

The classes of `transformers` from a small config, without a processor: prompts are written as token
ids. As for the tiny LLaVA (docs/vlm.md), auxiliary heads teach the tower what its tokens show, and
the language model what its phrases mean, and several questions are packed behind one clip: each
attends to the clip and to itself. Clips are drawn on the device; none is used twice.
"""

import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from pydantic import Field
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from eligo.config import Config
from eligo.nn import record_outputs
from eligo.scenes import words
from eligo.scenes.clips import DIRECTIONS, KINDS, ClipGraph, Kind, draw_clip_graphs
from eligo.scenes.config import SceneConfig, Split
from eligo.scenes.graph import UNIT
from eligo.scenes.painter import render_all
from eligo.scenes.vlm import pixel_values
from eligo.scenes.words import COLOUR, SHAPE

_SPECIAL = ("<pad>", "<end>", "<vision>", "</vision>", "<video>", "<image>", "assistant:", "object")
PAD, END, VISION, VISION_END, VIDEO, IMAGE, ASSISTANT, _OBJECT = range(len(_SPECIAL))
_MOST = 8  # objects of a shape
_TEXTS: Mapping[Kind, str] = {
    "first": "which appears first, the object object or the object object?",
    "direction": "which way does the object object move?",
    "count": "how many object are there in the end?",
}
_WORDS = {
    word: number
    for number, word in enumerate(
        dict.fromkeys(
            (*_SPECIAL, *re.findall(r"\w+|[,?]", " ".join(_TEXTS.values())), *words.COLOURS,
             *words.SHAPES, *words.PLURALS, *DIRECTIONS, *map(str, range(1, _MOST + 1)))
        )
    )
}  # fmt: skip
ANSWER = 3
"""Tokens of the longest answer, its end included."""
_CHUNK = 8  # steps whose clips are drawn together
_VISION_WEIGHT, _PHRASE_WEIGHT = 0.3, 0.3
_MIN_SHARE = 0.1  # a token belongs to the object that covers most of it, and at least this much


class VideoHostConfig(Config):
    """Sizes of clips, model and training."""

    scenes: SceneConfig = SceneConfig(
        height=96, width=96, min_objects=2, max_objects=5, decoys=0, radii=(0.09, 0.105, 0.125)
    )
    """The clips' scenes, square."""
    num_frames: int = Field(default=16, ge=2, multiple_of=2)
    """Frames of a clip; the tower encodes pairs of them."""
    patch: int = Field(default=8, ge=2)
    """Pixels a side of a patch; a token is two by two of them."""
    vision_width: int = Field(default=128, ge=16)
    """Width of the tower."""
    vision_layers: int = Field(default=4, ge=2)
    """Layers of the tower; every second one attends to the frame, the others to its quarters."""
    width: int = Field(default=192, ge=16)
    """Width of the language model."""
    layers: int = Field(default=6, ge=2)
    """Layers of the language model."""
    head: int = Field(default=32, ge=16, multiple_of=16)
    """Width of an attention head, of both."""
    questions: int = Field(default=9, ge=3, multiple_of=3)
    """Questions on a clip of a training step, as many of each kind."""
    batch_size: int = Field(default=64, ge=1)
    """Clips of a training step."""
    lr: float = Field(default=1e-3, gt=0)
    """Highest learning rate: after a warm-up, it falls as a cosine over the time."""
    vision_share: float = Field(default=0.2, ge=0, lt=1)
    """First part of the time, in which the tower alone is trained."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens of a clip: pairs of frames, rows, columns."""
        side = self.scenes.height // (2 * self.patch)
        return self.num_frames // 2, side, side

    @property
    def num_tokens(self) -> int:
        """Tokens of a clip."""
        return math.prod(self.grid)


def token_ids(text: str) -> list[int]:
    """Return the tokens of a question or an answer of `eligo.scenes.clips`.

    >>> token_ids("which way does the red ball move?") == [_WORDS[word] for word in
    ...     ("which", "way", "does", "the", "red", "ball", "move", "?")]
    True
    """
    return [_WORDS[word] for word in re.findall(r"\w+|[,?]", text)]


def build_host(config: VideoHostConfig) -> Qwen2_5_VLForConditionalGeneration:
    """Build the model with random weights."""
    half = config.head // 2
    third = 3 * half // 8
    text = {
        "vocab_size": len(_WORDS),
        "hidden_size": config.width,
        "intermediate_size": 8 * config.width // 3,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.width // config.head,
        "num_key_value_heads": config.width // config.head,
        "max_position_embeddings": 2048,
        "use_sliding_window": False,
        "pad_token_id": PAD,
        "bos_token_id": VISION,
        "eos_token_id": END,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [half - 2 * third, third, third],
        },
    }
    vision = {
        "depth": config.vision_layers,
        "hidden_size": config.vision_width,
        "intermediate_size": 8 * config.vision_width // 3,
        "num_heads": config.vision_width // config.head,
        "in_channels": 3,
        "patch_size": config.patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": config.width,
        "window_size": config.scenes.height // 2,
        "fullatt_block_indexes": list(range(1, config.vision_layers, 2)),
        "tokens_per_second": 1,
    }
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            vision_config=vision, text_config=text, video_token_id=VIDEO, image_token_id=IMAGE,
            vision_start_token_id=VISION, vision_end_token_id=VISION_END, tie_word_embeddings=False,
        )
    )  # fmt: skip
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = END
    return model


def for_equal_rows(model: Qwen2_5_VLForConditionalGeneration) -> None:
    """Let the model handle batches whose rows all have the same layout without loops over rows.

    The results are the same (tested): the tower attends within frames and windows of equal size, so
    that N clips of T frames are one clip of N T frames; and positions are those of the first row.
    """
    core: Any = model.model
    tower, rope = core.visual, core.get_rope_index
    stock = tower.forward

    def encode(hidden_states: Tensor, grid_thw: Tensor, **kwargs: Any) -> Any:
        times = grid_thw[:1].clone()
        times[0, 0] *= len(grid_thw)
        return stock(hidden_states, grid_thw=times, **kwargs)

    def positions(input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kwargs = {k: v[:1] if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        found, deltas = rope(input_ids[:1], **kwargs)
        return found.expand(-1, len(input_ids), -1), deltas.expand(len(input_ids), -1)

    tower.forward, core.get_rope_index = encode, positions
    for block in tower.blocks:
        block.attn.forward = _windows_at_once(block.attn)


def _windows_at_once(attention: Any) -> Callable[..., Tensor]:
    module = sys.modules[type(attention).__module__]

    def forward(
        hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **_: Any
    ) -> Tensor:
        parts = attention.qkv(hidden_states).unflatten(-1, (3, attention.num_heads, -1)).unbind(1)
        query, key = module.apply_rotary_pos_emb_vision(*parts[:2], *position_embeddings)
        windows = len(cu_seqlens) - 1
        query, key, value = (
            part.unflatten(0, (windows, -1)).transpose(1, 2) for part in (query, key, parts[2])
        )
        attend = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
        output, _ = attend(
            attention, query, key, value.to(query.dtype), attention_mask=None,
            scaling=attention.scaling, dropout=0.0, is_causal=False,
        )  # fmt: skip
        return attention.proj(output.reshape(len(hidden_states), -1))

    return forward


def patches_of(
    rgb: UInt8[Tensor, "clips frames 3 height width"], patch: int
) -> Float[Tensor, "patches values"]:
    """Return `pixel_values_videos` as the processor of Qwen2.5-VL orders them."""
    clips, frames, _, height, width = rgb.shape
    pixels = pixel_values(rgb.flatten(0, 1))
    parts = pixels.view(clips, frames // 2, 2, 3, height // (2 * patch), 2, patch,
                        width // (2 * patch), 2, patch)  # fmt: skip
    ordered = parts.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9)
    return ordered.reshape(-1, 3 * 2 * patch**2)


def prompt_inputs(
    config: VideoHostConfig,
    text: Int64[Tensor, "rows length"],
    pixels: Float[Tensor, "patches values"] | None,
) -> dict[str, Tensor]:
    """Return the inputs of prompts of equal length: the clip, unless there is none, and text."""
    rows, device = len(text), text.device
    tokens = 0 if pixels is None else config.num_tokens
    head = torch.tensor([VISION, *[VIDEO] * tokens, VISION_END], device=device)
    ids = torch.cat([head.expand(rows, -1), text], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["mm_token_type_ids"] = 2 * (ids == VIDEO).long()
    if pixels is not None:
        frames, height, width = config.grid
        grid = torch.tensor([[frames, 2 * height, 2 * width]], device=device)
        inputs["pixel_values_videos"] = pixels
        inputs["video_grid_thw"] = grid.expand(rows, -1)
        inputs["second_per_grid_ts"] = torch.ones(rows, device=device)
    return inputs


# ------------------------------------------------------------------ training data


@dataclass(frozen=True)
class Asked:
    """Questions of one kind on each of some clips, as tokens."""

    tokens: Int64[Tensor, "clips questions length"]
    """Question, `assistant:`, answer and end."""
    num_answer: int
    """Tokens of the answer, its end included: the last ones."""
    valid: Bool[Tensor, "clips questions"]
    phrases: Int64[Tensor, " phrases"]
    """Places of the last word of each phrase."""
    slots: Int64[Tensor, "clips questions phrases"]
    """The object that each phrase means; for `count`, one of those counted."""


def ask(clips: ClipGraph, kind: Kind, number: int) -> Asked:
    """Draw questions, in the words and with the answers of `ClipGraph.questions`."""
    graph, device = clips.graph, clips.graph.device
    exists = graph.exists
    colour, shape = (graph.attributes[..., part] for part in (COLOUR, SHAPE))
    pair = colour * len(words.SHAPES) + shape
    same = (pair[:, :, None] == pair[:, None]) & exists[:, None] & exists[:, :, None]
    unique = exists & (same.sum(-1) == 1)

    def draw(allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Return `number` options of each row, and whether there are any."""
        any_ = allowed.any(-1, keepdim=True)
        weights = torch.where(any_, allowed, True).float()
        return torch.multinomial(weights, number, replacement=True), any_.expand(-1, number)

    def name(slot: Tensor) -> Tensor:
        parts = [colour.gather(1, slot), shape.gather(1, slot)]
        first = [_WORDS[words.COLOURS[0]], _WORDS[words.SHAPES[0]]]
        return torch.stack([part + start for part, start in zip(parts, first, strict=True)], -1)

    if kind == "first":
        earlier = clips.appears[:, :, None] < clips.appears[:, None]
        pairs = (earlier & unique[:, :, None] & unique[:, None]).flatten(1)
        chosen, valid = draw(pairs)
        first, second = chosen // exists.shape[1], chosen % exists.shape[1]
        swap = torch.rand(first.shape, device=device) < 0.5
        slots = torch.stack(
            [torch.where(swap, second, first), torch.where(swap, first, second)], -1
        )
        fill, answer = torch.cat([name(slots[..., 0]), name(slots[..., 1])], -1), name(first)
    elif kind == "direction":
        chosen, valid = draw(unique)
        slots, fill = chosen[..., None], name(chosen)
        answer = clips.way.gather(1, chosen)[..., None] + _WORDS[DIRECTIONS[0]]
    else:
        chosen, valid = draw(exists)
        asked = shape.gather(1, chosen)
        many = ((shape[:, None] == asked[..., None]) & exists[:, None]).sum(-1)
        slots, fill = chosen[..., None], asked[..., None] + _WORDS[words.PLURALS[0]]
        answer = many.clamp(1, _MOST)[..., None] - 1 + _WORDS["1"]
    text = torch.tensor(token_ids(_TEXTS[kind]), device=device)
    places = (text == _OBJECT).nonzero().squeeze(-1)
    rows = text.repeat(*chosen.shape, 1)
    rows[..., places] = fill
    end = rows.new_tensor([END]).expand(*chosen.shape, 1)
    tokens = torch.cat([rows, end * 0 + ASSISTANT, answer, end], -1)
    phrases = places if kind == "count" else places[1::2]
    return Asked(tokens, answer.shape[-1] + 1, valid, phrases, slots)


class Targets(NamedTuple):
    """What the tokens of clips show."""

    owned: Bool[Tensor, "clips tokens"]
    centre: Bool[Tensor, "clips tokens"]
    """Whether an object's centre is in the token."""
    values: Int64[Tensor, "clips tokens 3"]
    """Colour, shape and direction of the token's object."""


class TrainingClips(NamedTuple):
    """Clips of a step."""

    clips: ClipGraph
    rgb: UInt8[Tensor, "clips frames 3 height width"]
    targets: Targets


def draw_training_clips(
    config: VideoHostConfig, split: Split, indices: Tensor, device: torch.device
) -> TrainingClips:
    """Draw, render and describe clips."""
    clips = draw_clip_graphs(config.scenes, split, indices, device, num_frames=config.num_frames)
    frames = clips.frames()
    rendered = render_all(frames)
    size, (times, rows, columns) = 2 * config.patch, config.grid
    last = slice(1, None, 2)  # the second frame of each pair
    shown = rendered.instances.unflatten(0, (-1, config.num_frames))[:, last].flatten(0, 1)
    tiles = shown.unfold(1, size, size).unfold(2, size, size).flatten(3).flatten(1, 2)
    slots = frames.exists.shape[1]
    share = torch.stack([(tiles == slot + 1).sum(-1) for slot in range(slots)], -1) / size**2
    most = share.max(-1)
    described = torch.cat(
        [clips.graph.attributes[..., (COLOUR, SHAPE)], clips.way[..., None]], -1
    ).repeat_interleave(times, 0)
    values = described.gather(1, most.indices[..., None].expand(-1, -1, 3))

    def of_pairs(values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, config.num_frames))[:, last].flatten(0, 1)

    place = of_pairs(frames.y) * rows // UNIT * columns + of_pairs(frames.x) * columns // UNIT
    centre = torch.zeros(len(tiles), rows * columns + 1, dtype=torch.bool, device=device)
    centre.scatter_(1, torch.where(of_pairs(frames.exists), place, rows * columns), True)

    def of_clips(values: Tensor) -> Tensor:
        return values.unflatten(0, (-1, times)).flatten(1, 2)

    targets = (most.values >= _MIN_SHARE, centre[:, :-1], values)
    rgb = rendered.rgb.unflatten(0, (-1, config.num_frames))
    return TrainingClips(clips, rgb, Targets(*map(of_clips, targets)))


# ------------------------------------------------------------------ training


class Heads(nn.Module):
    """Linear read-outs for the auxiliary losses."""

    def __init__(self, config: VideoHostConfig) -> None:
        super().__init__()
        self.sizes = (len(words.COLOURS), len(words.SHAPES), len(DIRECTIONS))
        self.token = nn.Linear(config.width, sum(self.sizes) + 2)
        self.phrase = nn.Linear(config.width, len(DIRECTIONS) + config.num_frames + 2)
        self.count = nn.Linear(config.width, _MOST + 1)

    def tokens(self, features: Tensor, targets: Targets) -> Tensor:
        """Return the loss of the tower's tokens."""
        *logits, flags = self.token(features).float().split((*self.sizes, 2), -1)
        weight = targets.owned.flatten() / targets.owned.sum().clamp(min=1)
        loss = sum(
            (
                F.cross_entropy(scores.flatten(0, 1), value.flatten(), reduction="none") * weight
            ).sum()
            for scores, value in zip(logits, targets.values.unbind(-1), strict=True)
        )
        labels = torch.stack([targets.owned, targets.centre], -1).float()
        rare = torch.tensor([3.0, 10.0], device=features.device)
        return loss + F.binary_cross_entropy_with_logits(flags, labels, pos_weight=rare)

    def phrases(self, states: Tensor, asked: Asked, kind: Kind, clips: ClipGraph) -> Tensor:
        """Return the loss of phrases: which way, when and where, or how many."""
        states = states[:, :, asked.phrases]
        weight = asked.valid / (asked.valid.sum() * len(asked.phrases)).clamp(min=1)
        weight = weight[..., None].expand(asked.slots.shape).flatten()
        if kind == "count":
            many = asked.tokens[..., -asked.num_answer] - _WORDS["1"] + 1
            loss = F.cross_entropy(
                self.count(states).float().flatten(0, -2), many.flatten(), reduction="none"
            )
            return (loss * weight).sum()
        slots = asked.slots.flatten(1)

        def of(values: Tensor) -> Tensor:
            return values.gather(1, slots).flatten()

        sizes = (len(DIRECTIONS), clips.num_frames, 2)
        way, when, where = self.phrase(states).float().flatten(0, -2).split(sizes, -1)
        place = torch.stack([of(clips.graph.x), of(clips.graph.y)], -1).float() * 2 / UNIT - 1
        loss = (
            F.cross_entropy(way, of(clips.way), reduction="none")
            + F.cross_entropy(when, of(clips.appears), reduction="none")
            + (where - place).abs().mean(-1)
        )
        return (loss * weight).sum()


class HostTraining:
    """Model, heads and constants of a training."""

    def __init__(self, config: VideoHostConfig, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.config, self.seed, self.device = config, seed, device
        self.model: Any = build_host(config)
        self.model.to(device)
        for_equal_rows(self.model)
        self.heads = Heads(config).to(device)
        self.each = config.questions // len(KINDS)
        self._drawn: list[TrainingClips] = []
        self._mask: Tensor | None = None
        row = torch.zeros(1, 1, dtype=torch.long, device=device)
        inputs = prompt_inputs(config, row, torch.zeros(()))
        core: Any = self.model.model
        self._prefix = core.get_rope_index(
            inputs["input_ids"], mm_token_type_ids=inputs["mm_token_type_ids"],
            video_grid_thw=inputs["video_grid_thw"],
            second_per_grid_ts=inputs["second_per_grid_ts"],
            attention_mask=inputs["attention_mask"],
        )[0][:, 0]  # fmt: skip

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Everything that is trained."""
        return [*self.model.parameters(), *self.heads.parameters()]

    def clips(self, step: int) -> TrainingClips:
        """Return the clips of a step; other seeds have others."""
        size, place = self.config.batch_size, step % _CHUNK
        if place == 0:
            first = (self.seed << 32) + step * size
            indices = first + torch.arange(_CHUNK * size)
            drawn = draw_training_clips(self.config, "train", indices, self.device)
            rows = [slice(number * size, (number + 1) * size) for number in range(_CHUNK)]
            self._drawn = [_rows(drawn, part) for part in rows]
        return self._drawn[place]

    def encode(self, clips: TrainingClips) -> Float[Tensor, "clips tokens width"]:
        """Return the features of the tower."""
        pixels = patches_of(clips.rgb, self.config.patch)
        times, height, width = self.config.grid
        grid = torch.tensor([[len(clips.rgb) * times, 2 * height, 2 * width]], device=self.device)
        core: Any = self.model.model
        return core.visual(pixels, grid_thw=grid).pooler_output.view(
            len(clips.rgb), self.config.num_tokens, -1
        )

    def answer(
        self, features: Float[Tensor, "clips tokens width"], asked: Sequence[Asked]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return for each kind the logits of the answers, and the states of the middle layer.

        Shapes: (clips, questions, answer, words) and (clips, questions, length, width).
        """
        text: Any = self.model.model.language_model
        tokens = torch.cat([one.tokens.flatten(1) for one in asked], 1)
        lengths = [one.tokens.shape[-1] for one in asked for _ in range(self.each)]
        ends = torch.tensor([[VISION], [VISION_END]], device=self.device)
        before, after = (text.embed_tokens(end).expand(len(features), -1, -1) for end in ends)
        inputs = torch.cat([before, features, after, text.embed_tokens(tokens)], 1)
        mask, positions = self._layout(lengths)
        with record_outputs([text.layers[(len(text.layers) - 1) // 2]]) as middle:
            states = text(
                inputs_embeds=inputs,
                attention_mask=mask.expand(len(features), -1, -1, -1),
                position_ids=positions.expand(-1, len(features), -1),
                use_cache=False,
            ).last_hidden_state
        place, found = self.config.num_tokens + 2, []
        for one in asked:
            size = one.tokens.shape[-1]
            columns = slice(place, place + self.each * size)
            place += self.each * size
            rows, of_middle = (
                values[:, columns].unflatten(1, (self.each, size)) for values in (states, middle[0])
            )
            logits = self.model.lm_head(rows[:, :, -one.num_answer - 1 : -1])
            found.append((logits.float(), of_middle))
        return found

    def answer_losses(self, features: Tensor, clips: TrainingClips) -> tuple[Tensor, Tensor]:
        """Return the losses of answers and phrases, and the share of right answers by kind."""
        asked = [ask(clips.clips, kind, self.each) for kind in KINDS]
        losses, right = [], []
        for kind, one, (logits, middle) in zip(
            KINDS, asked, self.answer(features, asked), strict=True
        ):
            targets = one.tokens[..., -one.num_answer :]
            loss = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
            weight = one.valid / one.valid.sum().clamp(min=1)
            losses.append((loss.view_as(targets).mean(-1) * weight).sum())
            losses.append(_PHRASE_WEIGHT * self.heads.phrases(middle, one, kind, clips.clips))
            is_right = (logits.argmax(-1) == targets).all(-1)
            right.append((is_right.detach() * weight).sum())
        return torch.stack(losses).sum(), torch.stack(right)

    def _layout(self, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the block mask and the positions of packed questions."""
        prefix = self.config.num_tokens + 2
        if self._mask is None:
            block = torch.zeros(prefix + sum(lengths), dtype=torch.long, device=self.device)
            sizes = torch.tensor(lengths, device=self.device)
            numbers = torch.arange(1, len(lengths) + 1, device=self.device)
            block[prefix:] = numbers.repeat_interleave(sizes)
            order = torch.arange(len(block), device=self.device)
            same = (block[:, None] == block) | (block == 0)
            self._mask = (same & (order[:, None] >= order))[None, None]
            start = self._prefix[:, prefix - 1 : prefix] + 1
            places = torch.cat([torch.arange(size, device=self.device) for size in lengths])
            self._positions = torch.cat([self._prefix[:, :prefix], start + places], 1)[:, None]
        return self._mask, self._positions


def _rows(drawn: TrainingClips, rows: slice) -> TrainingClips:
    clips = drawn.clips
    part = ClipGraph(clips.graph[rows], clips.way[rows], clips.appears[rows], clips.num_frames)
    return TrainingClips(part, drawn.rgb[rows], Targets(*(value[rows] for value in drawn.targets)))


def train_host(
    config: VideoHostConfig,
    seed: int,
    seconds: float,
    device: torch.device,
    *,
    max_steps: int | None = None,
    report: Callable[[str], None] = print,
) -> tuple[Qwen2_5_VLForConditionalGeneration, dict[str, Any]]:
    """Train a host for some time; return it, prepared by `for_equal_rows`, and how it went."""
    training = HostTraining(config, seed, device)
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(
        training.parameters, config.lr, betas=(0.9, 0.98), weight_decay=0.05, fused=on_gpu
    )
    begin, history, done = time.monotonic(), [], 0
    shown: list[float] = []
    for step in count():
        part = (time.monotonic() - begin) / seconds
        if max_steps is not None:
            part = max(part, step / max_steps)
        if part >= 1:
            break
        rate = min(part / 0.03, 1.0) * (0.02 + 0.98 * (1 + math.cos(math.pi * part)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * max(rate, 1e-3)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            clips = training.clips(step)
            features = training.encode(clips)
            loss = training.heads.tokens(features, clips.targets)
            right = None
            if part >= config.vision_share:
                answers, right = training.answer_losses(features, clips)
                loss = _VISION_WEIGHT * loss + answers
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(training.parameters, 1.0)
        optimizer.step()
        done = step + 1
        if step % 100 == 0 or (max_steps is not None and max_steps <= 10):
            shown = [loss.item(), *([] if right is None else right.tolist())]
            seconds_so_far = time.monotonic() - begin
            history.append([step, round(seconds_so_far, 1), *(round(one, 3) for one in shown)])
            report(f"host {seed}: step {step}, {seconds_so_far:.0f} s: {history[-1][2:]}")
    return training.model.eval(), {"steps": done, "history": history}
