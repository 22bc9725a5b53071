"""Rewrites the arguments of the core model's forward pass: a prompt with images, or later tokens.

`generate` computes image features before the first forward pass and passes only the projector's
output; a plain call passes pixels. Here both are reduced, projected and put among the embeddings,
and everything that counts columns (mask, positions, token types) is gathered with them.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import EligoError, InputError
from eligo.tokens.hooks.context import ForwardPass, Kwargs, PromptState
from eligo.tokens.hooks.layout import Layout, arrange, inverse, put, take, take_index, take_last
from eligo.tokens.hooks.prompt import Prompt, PromptScan, locate_images, scan_prompt
from eligo.tokens.hosts import Capture, Host
from eligo.tokens.reducer import TOWER_ROWS
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession

_IMAGE_INPUTS = (
    "pixel_values", "pixel_attention_mask", "image_sizes", "image_grid_thw",
    "image_hidden_states", "mm_encoder_outputs", "mm_token_type_ids",
    "pixel_values_videos", "video_grid_thw", "second_per_grid_ts",
)  # fmt: skip


class PrefillPatcher:
    """Rewrites the arguments of the core model's forward pass."""

    def __init__(
        self, session: "PruningSession", question_mask: Bool[Tensor, "batch length"] | None
    ) -> None:
        self.session, self.host, self.plan = session, session.host, session.plan
        self.question_mask = question_mask
        self._thread = threading.local()  # holds the prompt of a generation without a cache

    def begin(self, kwargs: Kwargs) -> tuple[ForwardPass, Kwargs]:
        """Read and reduce a prompt; return its pass and the new arguments of the core."""
        host, input_ids = self.host, kwargs.get("input_ids")
        if input_ids is None:
            raise InputError(
                "pruning: got inputs_embeds without input_ids; expected input_ids, which show "
                "where the image tokens are"
            )
        mask = kwargs.get("attention_mask")
        _check_mask(mask)
        graphs = self.session.graphs
        if graphs is not None and not graphs.is_ready(self.session):  # while the tower runs
            graphs = None
        length = self._prompt_length(input_ids, kwargs)
        token_id = host.config.video_token_id if _has_video(kwargs) else host.image_token_id
        scan = scan_prompt(input_ids, token_id, mask, self.question_mask, length)
        _check_padding(scan, kwargs)
        capture = self._encode(kwargs)
        replay = None if graphs is None else graphs.prompt(self.session, scan, capture, kwargs)
        if replay is None:
            return self.enter(scan, capture, kwargs)
        forward, changed = replay
        return forward, {**kwargs, **_without_images(kwargs), **changed}

    def enter(
        self, scan: PromptScan, capture: Capture, kwargs: Kwargs
    ) -> tuple[ForwardPass, Kwargs]:
        """Reduce a prompt that was read; return its pass and the new arguments of the core."""
        host, mask = self.host, kwargs.get("attention_mask")
        prompt = locate_images(scan, capture)
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = host.prompt_positions(kwargs, scan.input_ids)
        state, embeds = self._reduce(prompt, capture)
        state.offsets = host.position_offsets(positions, mask)
        changed: Kwargs = {**_without_images(kwargs), "inputs_embeds": embeds}
        if self.plan.positions == "reindex" and state.dropped:
            is_dropped = inverse(state.kept, state.length) < 0
            positions = positions - is_dropped.long().cumsum(-1)
        changed["position_ids"] = take_last(positions, state.kept)
        changed["attention_mask"] = self._kept_mask(mask, scan, state, kwargs)
        if kwargs.get("token_type_ids") is not None:
            changed["token_type_ids"] = take(kwargs["token_type_ids"], state.kept)
        forward = ForwardPass(state, is_prompt=True, key_mask=changed["attention_mask"])
        if host.has_windows:
            forward.prompt_masks = host.prompt_masks(kwargs)
        return forward, {**kwargs, **changed}

    def is_text(self, kwargs: Kwargs) -> bool:
        """Whether a prompt has neither an image nor a place for one (device sync)."""
        input_ids = kwargs.get("input_ids")
        if input_ids is None or _has_image(kwargs) or _has_video(kwargs):
            return False
        prompt = input_ids[:, : self._prompt_length(input_ids, kwargs)]
        return not bool((prompt == self.host.image_token_id).any())

    def continue_text(self, cache: Any, kwargs: Kwargs) -> Kwargs:
        """Return the arguments of later tokens of a prompt without an image.

        Hosts with several axes of positions would shift them as in the latest prompt with one.
        """
        given = kwargs["inputs_embeds" if kwargs.get("input_ids") is None else "input_ids"]
        if not self.host.mrope:
            return kwargs
        positions = self.host.later_positions(
            kwargs.get("position_ids"),
            torch.zeros(len(given), 1, dtype=torch.long),
            kwargs.get("attention_mask"),
            past=cache.get_seq_length(),
            new=given.shape[1],
            device=given.device,
        )
        return {**kwargs, "position_ids": positions}

    def _encode(self, kwargs: Kwargs) -> Capture:
        if any(kwargs.get(name) is not None for name in ("pixel_values", "pixel_values_videos")):
            self.host.encode(kwargs)
            if self.host.capture is None:
                raise EligoError(
                    "pruning: the image features could not be read, since torch.compile compiled "
                    "this call or the projector; call the plain model in this block"
                )
            return self.host.capture
        outputs = _encoded(kwargs, "video" if _has_video(kwargs) else "image")
        if outputs is None:
            raise InputError(
                "pruning: got image tokens without an image; expected pixel_values, and the prompt "
                "in one piece: chunked prefill is not supported"
            )
        capture, stage = self.host.captured(outputs), self.plan.stage1
        needs = () if stage is None else stage.reducer.needs
        rows = [need for need in TOWER_ROWS if need in needs]
        if capture is None or any(getattr(capture, need) is None for need in rows):
            raise InputError(
                "pruning: got image features that were computed outside of this context, or a part "
                "of them; expected pixel_values, and the prompt in one piece: stage 1 reads the "
                "projector's input, and chunked prefill is not supported"
            )
        return capture

    def _prompt_length(self, input_ids: Tensor, kwargs: Kwargs) -> int:
        """Return the length without generated tokens, which every step without a cache repeats."""
        previous: Tensor | None = getattr(self._thread, "prompt_ids", None)
        if (
            previous is not None
            and kwargs.get("use_cache") is False
            and len(previous) == len(input_ids)
            and previous.shape[1] < input_ids.shape[1]
            and torch.equal(previous, input_ids[:, : previous.shape[1]])
        ):
            return previous.shape[1]
        self._thread.prompt_ids = input_ids
        return input_ids.shape[1]

    def _reduce(self, prompt: Prompt, capture: Capture) -> tuple[PromptState, Tensor]:
        """Run stage 1, if there is one; return the state and the remaining embeddings."""
        host, stage, row_index = self.host, self.plan.stage1, prompt.row_index
        length, num_words = prompt.input_ids.shape[1], prompt.words.shape[1]
        trace = Trace(grid=prompt.grid, frames=prompt.frames, rows=prompt.rows, num_columns=length)
        stage_counts = [self.plan.counts(grid) for grid in prompt.grids]
        words = self._embed_words(prompt)
        positions = torch.arange(prompt.columns.shape[-1], device=words.device)
        positions = positions.expand(prompt.columns.shape)
        if len(set(prompt.counts)) > 1:
            positions = positions.masked_fill(prompt.columns < 0, -1)
        columns, counts, sizes, key_bias = prompt.columns, prompt.counts, None, None
        added = [prompt.stack(features).to(words.device) for features in capture.added]
        if stage is None:
            vision = prompt.stack(capture.projected)
        else:
            context = self.session.contexts.for_stage1(
                stage.reducer, prompt, capture, positions, words
            )
            counts = [count[0] for count in stage_counts]
            watch = Stopwatch(words.device)
            selection, merged, sizes, key_bias = self.session.merge(
                stage.reducer, context, torch.tensor(counts)
            )
            watch.stop()
            vision = host.project(merged.to(context.features.dtype))
            ragged = len(set(counts)) > 1
            columns = take_index(columns, selection.indices, ragged=ragged)
            positions = take_index(positions, selection.indices, ragged=ragged)
            added = [selection.fold(features) for features in added]
            trace.stages.append(StageTrace(0, stage.reducer.name, selection, positions, watch))
        lengths = row_index.reduced_lengths([length] * row_index.batch, prompt.counts, counts)
        kept, order, places = arrange(prompt.words, row_index.by_row(columns, -1), lengths)
        images = row_index.by_image(places[:, num_words:])
        if key_bias is not None:
            # Computed here, once: checkpointing would expect a layer to compute it again.
            empty = key_bias.new_zeros((row_index.batch, max(lengths)))
            key_bias = put(empty, key_bias, images, prompt.rows)
        base = Layout(
            index=None,
            images=images,
            words=places[:, :num_words],
            positions=positions,
            sizes=sizes,
            counts=counts,
            lengths=lengths,
            bias=key_bias,
        )
        vision = row_index.by_row(vision.to(words.device, words.dtype))
        embeds = take(torch.cat([words, vision], dim=1), order, ragged=False)
        if base.ragged:
            embeds = embeds.masked_fill((kept < 0).unsqueeze(-1), 0)
        return PromptState(prompt, kept, base, stage_counts, trace, added=added), embeds

    def _embed_words(self, prompt: Prompt) -> Tensor:
        ragged = prompt.ragged_words
        words = self.host.embed(take(prompt.input_ids, prompt.words, ragged=ragged))
        return words.masked_fill((prompt.words < 0).unsqueeze(-1), 0) if ragged else words

    def _kept_mask(
        self, mask: Tensor | None, scan: PromptScan, state: PromptState, kwargs: Kwargs
    ) -> Tensor | None:
        """Return the mask of kept keys; None if there is no padding."""
        has_cache = kwargs.get("past_key_values") is not None
        is_whole = scan.is_whole and not state.base.ragged
        if has_cache and is_whole and not self.host.is_flash:
            return None  # the host would sync with the device to find that it is all True
        if mask is not None:
            return take(mask, state.kept, ragged=state.base.ragged)
        if state.base.ragged:
            return (state.kept >= 0).long()
        # Without a mask and a cache, a gap in the positions would start another packed sequence.
        return None if has_cache else torch.ones_like(state.kept)

    def proceed(
        self, state: PromptState | None, cache: Any, kwargs: Kwargs
    ) -> tuple[ForwardPass, Kwargs]:
        """Continue a prompt whose state and cache are given."""
        if state is None:
            raise InputError(
                "pruning: got a cache that was not filled inside this context; expected all turns "
                "of a conversation, and the cache itself (not a copy), in one `with pruning(...)`"
            )
        refuse_image(kwargs)
        given = kwargs["inputs_embeds" if kwargs.get("input_ids") is None else "input_ids"]
        batch, num_given = given.shape[:2]
        if batch % state.base.batch:
            raise InputError(
                f"pruning: got {batch} rows after a prompt of {state.base.batch}; expected a "
                "multiple, each row repeated"
            )
        cached = cache.get_seq_length() - state.base.width
        new = self._num_new(state, cached, num_given, kwargs)
        _check_cache(cache, state, cached)
        changed: Kwargs = {name: None for name in _IMAGE_INPUTS if name in kwargs}
        for name in ("input_ids", "inputs_embeds", "token_type_ids"):
            if kwargs.get(name) is not None:
                changed[name] = kwargs[name][:, -new:]
        times, mask = batch // state.base.batch, kwargs.get("attention_mask")
        kept = _repeated(state.kept, times)
        positions = self.host.later_positions(
            kwargs.get("position_ids"),
            _repeated(state.offsets, times),
            mask,
            past=state.length + cached,
            new=new,
            device=given.device,
        )
        if self.plan.positions == "reindex":
            positions = positions - (state.length - (kept >= 0).sum(-1, keepdim=True))
        changed["position_ids"] = positions
        if mask is not None:
            old = take(mask, kept, ragged=state.base.ragged)
            mask = torch.cat([old, mask[:, state.length :]], dim=-1)
        elif state.base.ragged:
            mask = F.pad((kept >= 0).long(), (0, cached + new), value=1)
        changed["attention_mask"] = mask
        forward = ForwardPass(
            state, is_prompt=False, later=cached + new, times=times, key_mask=mask
        )
        return forward, {**kwargs, **changed}

    def _num_new(self, state: PromptState, cached: int, num_given: int, kwargs: Kwargs) -> int:
        """Return how many of the given tokens are new.

        A new turn of `generate` crops the conversation by the length of layer 0's cache, and so
        repeats as many tokens as stage 1 dropped.
        """
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if mask is not None:
            total = mask.shape[-1]
        elif num_given > 1 and positions is not None:
            total = self.host.logical_length(positions, state.offsets)
        else:
            return num_given
        new = total - state.length - cached
        if num_given not in (new, new + state.dropped) or new < 1:
            raise InputError(
                f"pruning: got {num_given} of {total} tokens, {state.length + cached} are cached; "
                f"expected {new}: a cropped cache (assisted decoding) is not supported"
            )
        return new


def _without_images(kwargs: Kwargs) -> Kwargs:
    return {name: None for name in ("input_ids", *_IMAGE_INPUTS) if name in kwargs}


def _repeated(values: Any, times: int) -> Any:
    return values if values is None or times == 1 else values.repeat_interleave(times, 0)


def _encoded(kwargs: Kwargs, kind: Literal["image", "video"]) -> Any:
    """Return the features that `generate` computed beforehand, if it did."""
    outputs = kwargs.get("mm_encoder_outputs")
    return outputs.get(kind) if isinstance(outputs, Mapping) else None


def _has_image(kwargs: Kwargs) -> bool:
    return kwargs.get("pixel_values") is not None or _encoded(kwargs, "image") is not None


def _has_video(kwargs: Kwargs) -> bool:
    return kwargs.get("pixel_values_videos") is not None or _encoded(kwargs, "video") is not None


def check_video(host: Host, kwargs: Kwargs) -> None:
    """Raise if there is a video that cannot be pruned."""
    if not _has_video(kwargs):
        return
    if not host.video_inputs:
        raise InputError(
            f"pruning: got a video for a {host.family}; expected images: videos are supported in "
            "Qwen2-VL, Qwen2.5-VL and Qwen3-VL"
        )
    if _has_image(kwargs):
        raise InputError(
            "pruning: got images and videos in one batch; expected either: call them one by one"
        )


def refuse_image(kwargs: Kwargs) -> None:
    """Raise if there is an image or a video in a later turn."""
    if _has_image(kwargs) or _has_video(kwargs):
        raise InputError(
            "pruning: got an image together with a filled cache; images of later turns and "
            "chunked prefill are not supported: expected all images in the first turn"
        )


def _check_mask(mask: Any) -> None:
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 2):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(
            f"pruning: got an attention_mask {shape}; expected one of shape (batch, length): "
            "masks of queries and keys (packed samples, static caches) are not supported; "
            "questions packed behind one image cannot share a selection either"
        )


def _check_padding(scan: PromptScan, kwargs: Kwargs) -> None:
    cached = kwargs.get("past_key_values") is not None or kwargs.get("use_cache") is True
    if cached and len(scan.input_ids) > 1 and not scan.ends_real:
        raise InputError(
            "pruning: got a batch padded on the right; expected padding on the left for "
            "generation: processor.tokenizer.padding_side = 'left'"
        )


def _check_cache(cache: Any, state: PromptState, cached: int) -> None:
    checked: Layout | None = None
    for layer, layout in state.layouts.items():
        if layout is checked:  # one layer per layout is enough
            continue
        checked, length = layout, cache.get_seq_length(layer)
        if length != layout.width + cached:
            raise InputError(
                f"pruning: the cache of layer {layer} has {length} columns, expected "
                f"{layout.width} + {cached}: it was changed outside (assisted decoding is not "
                "supported)"
            )
