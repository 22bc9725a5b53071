"""A pruned prompt as one CUDA graph: stage 1, all layers of the language model, and their cuts.

Budgets are exact, so all shapes follow from the length of the prompt. Prompts are padded on the
left to a multiple of `_BUCKET` columns, which are masked, so that one graph serves many lengths.
Where the image begins is read on the device. The padding is cropped from the results: states,
caches and traces are those of the plain path.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from eligo.nn.cuda_graphs import Recorder
from eligo.tokens.hooks.context import ForwardPass, Kwargs, PromptState
from eligo.tokens.hooks.layout import aligned, causal_mask
from eligo.tokens.hooks.packed import PackedTensors, copy_state
from eligo.tokens.hooks.prompt import PromptScan, constants
from eligo.tokens.hosts import Capture
from eligo.tokens.reducer import TOWER_ROWS

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession

_BUCKET = 32
_MAX_COLUMNS = 4096  # of all rows: longer kernels hide their launches
_READ = frozenset({
    "input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "return_dict",
    "pixel_values", "mm_encoder_outputs", "vision_feature_layer",
    "vision_feature_select_strategy",
})  # fmt: skip


def is_plain(kwargs: Kwargs) -> bool:
    """Whether a call of the core has a cache, and asks for nothing that graphs do not compute."""
    extra = [name for name, value in kwargs.items() if not (value is None or value is False)]
    cache = kwargs.get("past_key_values")
    return (
        set(extra) <= _READ
        and type(cache) is DynamicCache
        and not cache.offloading
        and all(type(layer) is DynamicLayer for layer in cache.layers)
        and kwargs.get("use_cache") is not False
        and kwargs.get("return_dict") is not False
    )


class PromptInputs:
    """The tensors that a recorded prompt reads, and what is constant in its bucket."""

    def __init__(
        self, session: "PruningSession", scan: PromptScan, capture: Capture, kwargs: Kwargs
    ) -> None:
        ids, mask = scan.input_ids, kwargs.get("attention_mask")
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = session.host.prompt_positions(kwargs, ids)
        self.columns = {
            "ids": ids,
            "question": scan.question,
            "mask": torch.ones_like(ids) if mask is None else mask,
            "positions": positions.expand(ids.shape),
        }
        rows = {need: getattr(capture, need) for need in TOWER_ROWS}
        self.images = {"features": capture.features, "projected": capture.projected}
        self.images |= {name: values for name, values in rows.items() if values is not None}
        self.pad = -ids.shape[1] % _BUCKET
        self.length = ids.shape[1] + self.pad
        self.num_vision, self.grids = list(scan.num_vision), list(capture.grids)

    def key(self) -> Any:
        """Return what a graph is made for."""
        shapes = [
            (name, len(values), values[0].shape, values[0].dtype, values[0].device)
            for name, values in self.images.items()
        ]
        return ("prompt", len(self.num_vision), self.length, tuple(self.grids), *shapes)

    def fits(self, scan: PromptScan, kwargs: Kwargs) -> bool:
        """Whether these prompts can be recorded: one image per row, of equally many tokens."""
        batch = len(self.num_vision)
        tokens = {len(one) for one in self.images["projected"]}
        devices = {x.device for x in self.columns.values()}
        devices |= {x.device for values in self.images.values() for x in values}
        return (
            is_plain(kwargs)
            and kwargs["past_key_values"].get_seq_length() == 0
            and batch * self.length <= _MAX_COLUMNS
            and all(len(values) == batch for values in self.images.values())
            and {*self.num_vision} == tokens
            and scan.ends_real
            and min(scan.num_question) > 0
            and self.columns["positions"].ndim == 2
            and len(devices) == 1
        )


class PromptGraph:
    """The recorded prompts of one bucket."""

    def __init__(
        self,
        session: "PruningSession",
        recorder: Recorder,
        given: PromptInputs,
    ) -> None:
        self._columns = {
            name: x.new_zeros((len(x), given.length)) for name, x in given.columns.items()
        }
        self._images = {name: torch.stack(list(values)) for name, values in given.images.items()}
        self._filler = 0 if session.host.image_token_id else 1  # the token of padding
        self._copy_in(given)
        device = given.columns["ids"].device
        known: dict[Any, Tensor] = {}

        def run() -> tuple[PromptState, PackedTensors]:
            packed = PackedTensors(device)
            with constants(known):
                state = self._run(session, given, packed)
            packed.pack()
            return state, packed

        (self._state, self._packed), self._replay = recorder.record(run)
        self._recorder, self._known, self._num_layers = recorder, known, len(session.host.layers)

    def bytes(self) -> int:
        """Return the bytes of the inputs."""
        return sum(x.nbytes for x in (*self._columns.values(), *self._images.values()))

    def size(self) -> int:
        """Return the bytes of inputs and results."""
        return self.bytes() + self._packed.bytes()

    def __call__(
        self, given: PromptInputs
    ) -> tuple[PromptState, Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the state, the last hidden states, and keys and values by layer."""
        with self._recorder.turn():
            self._copy_in(given)
            self._replay()
            copies, pad = self._packed.copies(given.pad), given.pad
            hidden = next(copies)[:, pad:]
            pairs = [
                (next(copies)[:, :, pad:], next(copies)[:, :, pad:])
                for _ in range(self._num_layers)
            ]
            return copy_state(self._state, pad, lambda *_: next(copies)), hidden, pairs

    def _copy_in(self, given: PromptInputs) -> None:
        for name, ours in self._columns.items():
            ours[:, : given.pad].fill_(self._filler if name == "ids" else 0)
            ours[:, given.pad :].copy_(given.columns[name], non_blocking=True)
        for name, ours in self._images.items():
            for image, values in zip(ours, given.images[name], strict=True):
                image.copy_(values, non_blocking=True)

    def _run(
        self, session: "PruningSession", given: PromptInputs, packed: PackedTensors
    ) -> PromptState:
        """Run the plain path on the padded inputs; pack its results."""
        host, columns = session.host, self._columns
        images: dict[str, Any] = {name: list(values) for name, values in self._images.items()}
        scan = PromptScan(
            input_ids=columns["ids"],
            vision=columns["ids"] == host.image_token_id,
            question=columns["question"],
            num_vision=given.num_vision,
            num_question=[1] * len(given.num_vision),  # at least; there is padding
            is_whole=False,
            ends_real=True,
        )
        cache = _KeysAndValues()
        kwargs = {
            "attention_mask": columns["mask"],
            "position_ids": columns["positions"],
            "past_key_values": cache,
        }
        capture = Capture(grids=given.grids, **images)
        forward, kwargs = session.prefill.enter(scan, capture, kwargs)
        forward.session = session
        embeds: Tensor = kwargs["inputs_embeds"]
        hidden = session.run_text(
            forward,
            inputs_embeds=embeds,
            attention_mask=_square(kwargs["attention_mask"], embeds),
            position_ids=kwargs["position_ids"],
            past_key_values=cache,
        )
        packed.add(hidden)
        for keys, values in cache.pairs:
            packed.add(keys)
            packed.add(values)
        return copy_state(forward.state, 0, packed.add)


def replayed(
    state: PromptState,
    hidden: Tensor,
    pairs: list[tuple[Tensor, Tensor]],
    on_filled: Callable[[Any, PromptState], None],
) -> tuple[ForwardPass, Kwargs]:
    """Return the pass of a replayed prompt, and the new arguments of the core."""

    def output(kwargs: Kwargs) -> BaseModelOutputWithPast:
        cache = kwargs["past_key_values"]
        while len(cache.layers) < len(pairs):
            cache.layers.append(DynamicLayer())
        for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
        on_filled(cache, state)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache)  # pyright: ignore

    embeds = hidden.new_empty((*state.kept.shape, 0))  # the language model does not run
    forward = ForwardPass(state, is_prompt=True, replay=output)
    return forward, {"inputs_embeds": embeds, "attention_mask": None, "position_ids": None}


class _KeysAndValues:
    """In place of a cache: keeps the keys and values of one prompt."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of the next layer."""
        assert layer == len(self.pairs)
        self.pairs.append((keys, values))
        return keys, values


def _square(mask: Tensor, like: Tensor) -> Tensor:
    """Return the causal mask of keys that are real; padding sees itself, lest a row is empty."""
    width = like.shape[1]
    diagonal = torch.eye(width, dtype=torch.bool, device=like.device)
    visible = causal_mask(width, width, like.device) & (mask.bool()[:, None, None] | diagonal)
    lowest = torch.finfo(like.dtype).min
    zeros = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
    return aligned(zeros.masked_fill(~visible, lowest))
