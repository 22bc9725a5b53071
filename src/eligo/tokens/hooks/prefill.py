"""The entrance to the language model: a prompt with images, or tokens after it.

Spec: "Stage 1", "Multi-turn", "Beams". `generate` computes image features before the first forward
pass and hands over only what the projector made of them; a plain call hands over pixels. Both end
here: features are reduced, projected and put among the embeddings, and whatever counts columns
(mask, positions, token types) is gathered with them.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from eligo.errors import InputError
from eligo.selection import Selection
from eligo.tokens.hooks.context import Views
from eligo.tokens.hooks.frame import (
    Frame,
    Step,
    dropped_before,
    fewer,
    num_dropped,
)
from eligo.tokens.hooks.layout import Layout, arrange, follow, spread, take, take_last
from eligo.tokens.hooks.prompt import Prompt, Reading, look_at, place
from eligo.tokens.hosts import Capture, Host
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer, ReducerContext
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

Merge = Callable[
    [Reducer, ReducerContext, Tensor], tuple[Selection, Tensor, Tensor | None, Tensor | None]
]
"""Stage 1: choice in raster order, reduced features, sizes, key bias."""

_IMAGES = (
    "pixel_values",
    "pixel_attention_mask",
    "image_sizes",
    "image_grid_thw",
    "image_hidden_states",
    "mm_encoder_outputs",
    "mm_token_type_ids",
)


class _PromptIds(threading.local):
    """The prompt that a thread generates from without a cache."""

    def __init__(self) -> None:
        self.latest: Tensor | None = None


class Entrance:
    """What happens to the arguments of the core."""

    def __init__(
        self,
        host: Host,
        plan: Plan,
        question_mask: Bool[Tensor, "batch length"] | None,
        views: Views,
        merge: Merge,
    ) -> None:
        self.host, self.plan, self.question_mask = host, plan, question_mask
        self.views, self.merge = views, merge
        self._prompt_ids = _PromptIds()

    def begin(self, kwargs: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        """A prompt: read and reduce it; returns what the core is to be called with instead."""
        host, input_ids = self.host, kwargs.get("input_ids")
        if input_ids is None:
            raise InputError(
                "pruning: got inputs_embeds without input_ids; expected input_ids, which say "
                "where the image tokens are"
            )
        mask = kwargs.get("attention_mask")
        _check_mask(mask)
        length = self._prompt_length(input_ids, kwargs)
        reading = look_at(input_ids, host.image_token_id, mask, self.question_mask, length)
        _check_ends(reading, kwargs)
        capture = self._encode(kwargs)
        prompt = place(reading, capture)
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = host.prompt_positions(kwargs, input_ids)
        frame, embeds = self._reduce(prompt, capture)
        frame.offsets = host.position_offsets(positions, mask)
        changed: dict[str, Any] = {name: None for name in _IMAGES if name in kwargs}
        changed |= {"input_ids": None, "inputs_embeds": embeds}
        changed["position_ids"] = self._kept_positions(positions, frame)
        changed["attention_mask"] = self._kept_mask(mask, reading, frame, kwargs)
        if kwargs.get("token_type_ids") is not None:
            changed["token_type_ids"] = take(kwargs["token_type_ids"], frame.kept)
        return Step(frame, prompt=True), {**kwargs, **changed}

    def _encode(self, kwargs: Mapping[str, Any]) -> Capture:
        if kwargs.get("pixel_values") is not None:
            self.host.encode(kwargs)
            assert self.host.capture is not None
            return self.host.capture
        outputs = _encoded_image(kwargs)
        if outputs is None:
            raise InputError(
                "pruning: got a prompt without an image; expected pixel_values, and the prompt in "
                "one piece: run text alone outside of pruning; chunked prefill is not supported"
            )
        capture, stage = self.host.captured(outputs), self.plan.stage1
        needs = () if stage is None else stage.reducer.needs
        if capture is None or ("cls_row" in needs and capture.cls_row is None):
            raise InputError(
                "pruning: got image features that were computed outside of this context; expected "
                "pixel_values, or features computed inside: stage 1 reads what the projector got"
            )
        return capture

    def _prompt_length(self, input_ids: Tensor, kwargs: Mapping[str, Any]) -> int:
        """Without a cache every step repeats the prompt: what was generated is no question."""
        known = self._prompt_ids.latest
        if (
            known is not None
            and kwargs.get("use_cache") is False
            and len(known) == len(input_ids)
            and known.shape[1] < input_ids.shape[1]
            and torch.equal(known, input_ids[:, : known.shape[1]])
        ):
            return known.shape[1]
        self._prompt_ids.latest = input_ids
        return input_ids.shape[1]

    def _reduce(self, prompt: Prompt, capture: Capture) -> tuple[Frame, Tensor]:
        """Stage 1, if there is one, and the embeddings of what is left."""
        host, stage, seats = self.host, self.plan.stage1, prompt.seats
        trace = Trace(grid=prompt.grid, rows=prompt.rows, num_columns=prompt.input_ids.shape[1])
        counts = [self.plan.counts(grid) for grid in prompt.grids]
        words = self._embed_words(prompt)
        positions = torch.arange(prompt.columns.shape[-1], device=words.device)
        positions = positions.expand(prompt.columns.shape)
        if len(set(prompt.counts)) > 1:
            positions = positions.masked_fill(prompt.columns < 0, -1)
        columns, wanted, sizes, key_bias = prompt.columns, prompt.counts, None, None
        if stage is None:
            vision = prompt.of_images(capture.projected)
        else:
            context = self.views.before(stage.reducer, prompt, capture, positions, words)
            wanted = [count[0] for count in counts]
            watch = Stopwatch(words.device)
            selection, merged, sizes, key_bias = self.merge(
                stage.reducer, context, torch.tensor(wanted)
            )
            watch.stop()
            vision = host.project(merged.to(context.features.dtype))
            ragged = len(set(wanted)) > 1
            columns = follow(columns, selection.indices, ragged=ragged)
            positions = follow(positions, selection.indices, ragged=ragged)
            trace.stages.append(StageTrace(0, stage.reducer.name, selection, positions, watch))
        lengths = fewer(
            [prompt.input_ids.shape[1]] * seats.batch, seats.rows, prompt.counts, wanted
        )
        kept, order, places = arrange(prompt.words, seats.by_row(columns, -1), lengths)
        num_words = prompt.words.shape[1]
        images = seats.by_image(places[:, num_words:])
        if key_bias is not None:
            # Made here, once: in a layer, checkpointing would expect it to be made again.
            key_bias = spread(key_bias, images, prompt.rows, seats.batch, max(lengths))
        base = Layout(
            index=None,
            images=images,
            words=places[:, :num_words],
            positions=positions,
            sizes=sizes,
            counts=wanted,
            lengths=lengths,
            bias=key_bias,
        )
        vision = seats.by_row(vision.to(words.device, words.dtype))
        embeds = take(torch.cat([words, vision], dim=1), order, ragged=False)
        if base.ragged:
            embeds = embeds.masked_fill((kept < 0).unsqueeze(-1), 0)
        return Frame(prompt, kept, base, counts, trace), embeds

    def _embed_words(self, prompt: Prompt) -> Tensor:
        ragged = prompt.ragged_words
        words = self.host.embed(take(prompt.input_ids, prompt.words, ragged=ragged))
        return words.masked_fill((prompt.words < 0).unsqueeze(-1), 0) if ragged else words

    def _kept_mask(
        self, mask: Tensor | None, reading: Reading, frame: Frame, kwargs: Mapping[str, Any]
    ) -> Tensor | None:
        """Of keys; None where there is no padding to tell of."""
        has_cache = kwargs.get("past_key_values") is not None
        is_whole = reading.is_whole and not frame.base.ragged
        if has_cache and is_whole and not self.host.attention.startswith("flash"):
            return None  # the host would wait for the device to see that it is True throughout
        if mask is not None:
            return take(mask, frame.kept, ragged=frame.base.ragged)
        if frame.base.ragged:
            return (frame.kept >= 0).long()
        # Without a mask and a cache, a gap in the positions reads as the start of another
        # sequence that was packed behind this one.
        return None if has_cache else torch.ones_like(frame.kept)

    def _kept_positions(self, positions: Tensor, frame: Frame) -> Tensor:
        if self.plan.positions == "reindex" and frame.dropped:
            positions = positions - dropped_before(frame.kept, frame.length)
        return take_last(positions, frame.kept)

    def proceed(
        self, frame: Frame | None, cache: Any, kwargs: dict[str, Any]
    ) -> tuple[Step, dict[str, Any]]:
        """Tokens after a prompt whose frame and cache are given."""
        if frame is None:
            raise InputError(
                "pruning: got a cache that was not filled inside this context; expected all turns "
                "of a conversation, and the cache itself (not a copy), in one `with pruning(...)`"
            )
        if kwargs.get("pixel_values") is not None or _encoded_image(kwargs) is not None:
            raise InputError(
                "pruning: got an image together with a filled cache; expected all images in the "
                "first turn, in one piece: images of later turns and chunked prefill are not "
                "supported"
            )
        given = kwargs["inputs_embeds" if kwargs.get("input_ids") is None else "input_ids"]
        batch, num_given = given.shape[:2]
        if batch % frame.base.batch:
            raise InputError(
                f"pruning: got {batch} rows after a prompt of {frame.base.batch}; expected a "
                "multiple, each row repeated"
            )
        cached = cache.get_seq_length() - frame.base.width
        new = self._num_new(frame, cached, num_given, kwargs)
        _check_cache(cache, frame, cached)
        changed: dict[str, Any] = {name: None for name in _IMAGES if name in kwargs}
        for name in ("input_ids", "token_type_ids"):
            if kwargs.get(name) is not None:
                changed[name] = kwargs[name][:, -new:]
        if kwargs.get("inputs_embeds") is not None:
            changed["inputs_embeds"] = kwargs["inputs_embeds"][:, -new:]
        times = batch // frame.base.batch
        kept = _repeated(frame.kept, times)
        positions = self.host.later_positions(
            kwargs.get("position_ids"),
            offsets=_repeated(frame.offsets, times),
            mask=kwargs.get("attention_mask"),
            past=frame.length + cached,
            new=new,
            device=given.device,
        )
        if self.plan.positions == "reindex":
            positions = positions - num_dropped(kept, frame.length)
        changed["position_ids"] = positions
        mask = kwargs.get("attention_mask")
        if mask is not None:
            old = take(mask, kept, ragged=frame.base.ragged)
            mask = torch.cat([old, mask[:, frame.length :]], dim=-1)
        elif frame.base.ragged:
            mask = torch.nn.functional.pad((kept >= 0).long(), (0, cached + new), value=1)
        changed["attention_mask"] = mask
        step = Step(frame, prompt=False, later=cached + new, times=times)
        return step, {**kwargs, **changed}

    def _num_new(self, frame: Frame, cached: int, num_given: int, kwargs: Mapping[str, Any]) -> int:
        """How many of the given tokens are new.

        A new turn of `generate` cuts the conversation by the length of layer 0's cache, and so
        repeats as many tokens as stage 1 dropped.
        """
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if mask is not None:
            total = mask.shape[-1]
        elif num_given > 1 and positions is not None:
            total = self.host.logical_length(positions, frame.offsets)
        else:
            return num_given
        new = total - frame.length - cached
        if num_given not in (new, new + frame.dropped) or new < 1:
            raise InputError(
                f"pruning: got {num_given} tokens for a conversation of {total}, of which "
                f"{frame.length + cached} are cached; expected {new}: a cropped cache (assisted "
                "decoding) is not supported"
            )
        return new


def _repeated(values: Any, times: int) -> Any:
    """Rows of a prompt as rows after it; None stays."""
    return values if values is None or times == 1 else values.repeat_interleave(times, 0)


def _encoded_image(kwargs: Mapping[str, Any]) -> Any:
    """What `generate` encoded beforehand, if it did."""
    outputs = kwargs.get("mm_encoder_outputs")
    return outputs.get("image") if isinstance(outputs, Mapping) else None


def _check_mask(mask: Any) -> None:
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(
            f"pruning: got an attention_mask {shape}; expected one of shape (batch, length): "
            "masks of queries and keys (packed samples, static caches) cannot be followed; "
            "questions packed behind one image cannot share a selection either"
        )


def _check_ends(reading: Reading, kwargs: Mapping[str, Any]) -> None:
    cached = kwargs.get("past_key_values") is not None or kwargs.get("use_cache") is True
    if cached and len(reading.input_ids) > 1 and not reading.ends_real:
        raise InputError(
            "pruning: got a batch padded on the right; expected padding on the left for "
            "generation: processor.tokenizer.padding_side = 'left'"
        )


def _check_cache(cache: Any, frame: Frame, cached: int) -> None:
    checked: Layout | None = None
    for layer, layout in frame.layouts.items():
        if layout is checked:  # one layer of each stretch between two cuts
            continue
        checked, found = layout, cache.get_seq_length(layer)
        if found != layout.width + cached:
            raise InputError(
                f"pruning: the cache of layer {layer} has {found} columns, expected "
                f"{layout.width + cached}; it was changed outside (assisted decoding and "
                "cropped caches are not supported)"
            )
