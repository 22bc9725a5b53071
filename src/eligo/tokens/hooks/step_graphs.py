"""One step of decoding with a pruned cache as a CUDA graph.

A graph has keys and values of its own: per layer, room for the columns that the layer kept of the
prompt and for later tokens, in steps of `_ROOM`. They hold one conversation at a time, whose cache
shows views of them. Another one is copied in, and the first gets copies of what it had.
"""

from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

from eligo.nn.cuda_graphs import Recorder
from eligo.tokens.hooks.context import ForwardPass, Kwargs, PromptState
from eligo.tokens.hooks.layout import Layout

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession

_PROMPT = 64  # columns by which the room for prompts grows
_ROOM = 128  # the same for later tokens


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


class StepShape:
    """Sizes of the caches that a graph can hold, from a state and the tokens after its prompt."""

    def __init__(self, state: PromptState, later: int, num_layers: int) -> None:
        base, prompt = state.base.width, _up(state.base.width, _PROMPT)
        self.columns = prompt + _up(later, _ROOM)  # of layer 0
        layouts = [state.layout_of(layer) for layer in range(num_layers)]
        self.layouts = list(dict.fromkeys(layouts))
        self.layer_groups = [self.layouts.index(layout) for layout in layouts]
        dropped = [base - layout.width for layout in self.layouts]
        self.widths = [_up(self.columns - count, 16) for count in dropped]

    def key(self, cache: Any) -> Any:
        """Return what a graph is made for."""
        like = cache.layers[0].keys
        has_bias = tuple(layout.bias is not None for layout in self.layouts)
        shape = (len(like), self.columns, tuple(self.widths), tuple(self.layer_groups))
        return ("step", shape, has_bias, like.dtype, like.device)

    def bytes(self, cache: Any) -> int:
        """Return the bytes of all keys and values."""
        keys: Tensor = cache.layers[0].keys
        columns = sum(self.widths[group] for group in self.layer_groups)
        return 2 * columns * keys[:, :, 0].numel() * keys.itemsize


class StepGraph:
    """The recorded step of caches up to some size."""

    def __init__(
        self,
        session: "PruningSession",
        recorder: Recorder,
        shape: StepShape,
        cache: Any,
        forward: ForwardPass,
        kwargs: Kwargs,
    ) -> None:
        self._recorder, self._groups = recorder, shape.layer_groups
        self.embeds = torch.zeros_like(kwargs["inputs_embeds"])
        batch, device = len(self.embeds), self.embeds.device

        def integers(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=device)

        self.positions, self.cursor = integers(batch, 1), integers(1)
        # The last column stays hidden: padding points to it.
        self.key_mask = torch.zeros((batch, shape.columns + 1), dtype=torch.bool, device=device)
        self.index = [integers(batch, width) for width in shape.widths]
        self.starts = [integers(1) for _ in shape.widths]
        self.bias = [
            None if layout.bias is None else self.embeds.new_zeros((batch, width))
            for layout, width in zip(shape.layouts, shape.widths, strict=True)
        ]
        self.pairs = [
            tuple(
                x.new_zeros((*x.shape[:2], shape.widths[group], x.shape[3]))
                for x in (layer.keys, layer.values)
            )
            for layer, group in zip(cache.layers, shape.layer_groups, strict=True)
        ]
        self._owner: ReferenceType[Any] | None = None
        self._views: list[tuple[Tensor, Tensor]] = []
        self._copy_in(shape, cache, forward, kwargs)
        self._hidden, self._replay = recorder.record(lambda: self._run(session))

    def bytes(self) -> int:
        """Return the bytes of inputs, keys and values."""
        kept = (x for pair in self.pairs for x in pair)
        return sum(x.nbytes for x in (self.embeds, self.key_mask, *self.index, *kept))

    def __call__(
        self, shape: StepShape, cache: Any, forward: ForwardPass, kwargs: Kwargs
    ) -> BaseModelOutputWithPast:
        """Return the output of the language model; the cache has grown by a token."""
        with self._recorder.turn():
            self._copy_in(shape, cache, forward, kwargs)
            self._replay()
            hidden = self._hidden.clone()
            self._show(shape, cache, forward.later)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache)  # pyright: ignore

    def size(self) -> int:
        """Return the bytes of all that is kept between steps."""
        return self.bytes()

    def holds(self, cache: Any) -> bool:
        """Whether the keys and values of a cache are here."""
        if self._owner is None or self._owner() is not cache:
            return False
        layers = zip(cache.layers, self._views, strict=False)
        return all(layer.keys is k and layer.values is v for layer, (k, v) in layers)

    def has_lost(self, cache: Any) -> bool:
        """Whether others have rewritten a cache that was here."""
        return self._owner is not None and self._owner() is cache and not self.holds(cache)

    def release(self) -> None:
        """Give the cache whose keys and values are here a copy of them."""
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            for layer, (keys, values) in zip(owner.layers, self._views, strict=False):
                if layer.keys is keys:
                    layer.keys = keys.clone()
                if layer.values is values:
                    layer.values = values.clone()
        self._owner, self._views = None, []

    def _copy_in(self, shape: StepShape, cache: Any, forward: ForwardPass, kwargs: Kwargs) -> None:
        base, later = forward.state.base.width, forward.later
        if not self.holds(cache):
            self.release()
            self._fill(shape, cache, base)
        if forward.key_mask is None:
            self.key_mask[:, : base + later].fill_(True)
        else:
            self.key_mask[:, : base + later].copy_(forward.key_mask, non_blocking=True)
        self.cursor.fill_(later - 1)
        self.embeds.copy_(kwargs["inputs_embeds"], non_blocking=True)
        self.positions.copy_(kwargs["position_ids"].expand_as(self.positions), non_blocking=True)

    def _fill(self, shape: StepShape, cache: Any, base: int) -> None:
        """Copy a cache that is not here."""
        hidden = self.key_mask.shape[1] - 1
        self.key_mask.fill_(False)
        for number, layout in enumerate(shape.layouts):
            index, width = self.index[number], layout.width
            later = torch.arange(base, base + index.shape[1] - width, device=index.device)
            index[:, width:].copy_(later.clamp_max(hidden))
            index[:, :width].copy_(_columns(layout, hidden))
            self.starts[number].fill_(width)
            if (bias := self.bias[number]) is not None and layout.bias is not None:
                bias.fill_(0)
                bias[:, :width].copy_(layout.bias)
        for layer, ours in zip(cache.layers, self.pairs, strict=True):
            for x, given in zip(ours, (layer.keys, layer.values), strict=True):
                x[:, :, : given.shape[2]].copy_(given, non_blocking=True)
                x[:, :, given.shape[2] :].zero_()  # hidden, but a NaN of others would spread

    def _show(self, shape: StepShape, cache: Any, later: int) -> None:
        """Let the cache show its keys and values."""
        widths = [layout.width + later for layout in shape.layouts]
        self._owner, self._views = ref(cache), []
        for layer, group, (keys, values) in zip(
            cache.layers, self._groups, self.pairs, strict=True
        ):
            layer.keys = keys.narrow(2, 0, widths[group])
            layer.values = values.narrow(2, 0, widths[group])
            self._views.append((layer.keys, layer.values))

    def _run(self, session: "PruningSession") -> Tensor:
        lowest = torch.finfo(self.embeds.dtype).min
        masks, places = [], []
        for index, bias, start in zip(self.index, self.bias, self.starts, strict=True):
            shown = torch.zeros_like(index, dtype=self.embeds.dtype) if bias is None else bias
            visible = self.key_mask.gather(1, index)
            masks.append(shown.masked_fill(~visible, lowest)[:, None, None])
            places.append(start + self.cursor)
        groups = self._groups
        return session.run_text(
            _StepPass([masks[group] for group in groups]),
            inputs_embeds=self.embeds,
            attention_mask=masks[0],
            position_ids=self.positions,
            past_key_values=_StaticCache(self.pairs, [places[group] for group in groups]),
        )


class _StepPass:
    """In place of a `ForwardPass`: gives every layer its mask."""

    is_prompt = False

    def __init__(self, masks: list[Tensor]) -> None:
        self.masks, self.session = masks, self

    def enter_layer(
        self, index: int, _forward: Any, args: tuple[Any, ...], kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], Kwargs]:
        """Return the arguments of a layer."""
        return args, {**kwargs, "attention_mask": self.masks[index]}

    def leave_text(self, *_: Any) -> None:
        """Do nothing."""


class _StaticCache:
    """In place of a cache: writes at places that are read on the device; returns all room."""

    def __init__(self, pairs: list[Any], places: list[Tensor]) -> None:
        self.pairs, self.places = pairs, places

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one token."""
        ours, place = self.pairs[layer], self.places[layer]
        return ours[0].index_copy_(2, place, keys), ours[1].index_copy_(2, place, values)


def _columns(layout: Layout, hidden: int) -> Tensor:
    """Return the columns of layer 0 that a layer sees; `hidden` in place of padding."""
    if layout.index is None:
        return torch.arange(layout.width, device=layout.images.device)
    return layout.index.masked_fill(layout.index < 0, hidden)
