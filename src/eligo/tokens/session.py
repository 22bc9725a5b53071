"""The hooks behind `pruning` and `masking`: what both forms share.

Spec: "Integration with transformers 5.x". Departs from it in one place: stage 1 hooks the core
(the model without head) rather than the outermost model, because PEFT calls the `forward` of the
outermost one directly, and then no hook of it runs; the arguments are the same.

One forward pass: the core's hook reads the prompt, reduces (stage 1) and leaves a `Step` for the
text model's hook, which sends it along to the layers as an argument, where their hooks take it
away. So a step stays with its own pass, also when gradient checkpointing runs a layer again.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from eligo import ops
from eligo.errors import EligoError, InputError
from eligo.selection import Selection
from eligo.tokens.attention import RowRecorder, attention_of_row, attention_received
from eligo.tokens.checks import check_call, check_reducers, check_selection
from eligo.tokens.hosts import Host, host_of, refuse_video
from eligo.tokens.layout import Layout, inverse, spread, take, take_last
from eligo.tokens.plan import Plan
from eligo.tokens.prompt import Prompt, question_of, read_prompt
from eligo.tokens.reducer import Reducer, ReducerContext
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

_STEP = "eligo_step"
_IMAGES = (
    "pixel_values",
    "pixel_attention_mask",
    "image_sizes",
    "image_grid_thw",
    "image_hidden_states",
    "mm_encoder_outputs",
    "mm_token_type_ids",
)


@dataclass(eq=False)
class Frame:
    """One prompt on its way through the layers, and what later tokens must know of it."""

    prompt: Prompt
    kept: Int[Tensor, "batch width"]
    """Columns of the prompt that entered the language model; -1 pads."""
    base: Layout
    """What layer 0 sees."""
    counts: Sequence[Sequence[int]]
    """Per image: tokens after each stage of the plan."""
    layouts: dict[int, Layout] = field(default_factory=dict)
    """Per layer, as far as the prompt has come."""
    moves: dict[int, Any] = field(default_factory=dict)
    """Per cut: what it did."""
    rows: dict[int, Tensor] = field(default_factory=dict)
    """Attention rows, per layer."""
    words: dict[Layout, Tensor] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Columns of the prompt."""
        return self.prompt.input_ids.shape[1]

    @property
    def dropped(self) -> int:
        """Columns that stage 1 took away."""
        return self.length - self.base.width


@dataclass(eq=False)
class Step:
    """One forward pass: the prompt itself, or tokens after it."""

    frame: Frame
    prompt: bool
    later: int = 0
    """Columns after the prompt, those of this pass included."""
    times: int = 1
    """How many rows each row of the prompt has become."""
    has_grad: bool = False
    made: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    """Masks and rotary tables of this pass, with what they were made from."""

    def once(self, key: Any, source: Any, make: Callable[[], Any]) -> Any:
        """Layers between two cuts share masks and tables."""
        known = self.made.get(key)
        if known is None or known[0] is not source:
            known = self.made[key] = (source, make())
        return known[1]


class Session:
    """Hooks on one model for as long as the context is open. Subclasses say what a cut does."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        question_mask: Tensor | None,
        scene: Tensor | None,
        make_host: Callable[[nn.Module], Host] | None,
    ) -> None:
        self.host = host_of(model, make_host)
        self.plan = plan.resolve(len(self.host.layers), self.host.supply)
        check_reducers(self.host, self.plan)
        self.cuts = {cut.layer: cut for cut in self.plan.cuts}
        self.question_mask, self.scene = question_mask, scene
        self.trace = Trace()
        self.is_open = False
        self._step: Step | None = None
        self._frames: WeakKeyDictionary[Any, Frame] = WeakKeyDictionary()
        self._prompt_ids: Tensor | None = None
        self._recorder: RowRecorder | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Session":
        core = self.host.core
        hooked = [getattr(hook, "__self__", None) for hook in core._forward_pre_hooks.values()]
        if any(isinstance(owner, Session) for owner in hooked):
            raise EligoError(
                "pruning: this model is pruned already; expected one context at a time: nested "
                "plans would count each other's columns"
            )
        with ExitStack() as stack:
            self._install(stack)
            self._stack = stack.pop_all()
        self.is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.is_open = False
        self._stack.__exit__(kind, error, traceback)
        self.host.capture, self._step, self._prompt_ids = None, None, None
        self._frames.clear()

    def _install(self, stack: ExitStack) -> None:
        host = self.host
        for name, value in host.state().items():
            stack.callback(setattr, host.core, name, value)
        needs = {need for cut in self.plan.cuts for need in cut.reducer.needs}
        if "attention_row" in needs:
            self._recorder = stack.enter_context(
                RowRecorder(host.text.config, "the language model")
            )
        if self.plan.stage1 is not None and "cls_row" in self.plan.stage1.reducer.needs:
            tower = stack.enter_context(RowRecorder(host.tower.config, "the vision tower"))
            tower.listeners[host.tower_attention] = self._hear_tower
        handles = host.hooks()
        before = {"with_kwargs": True, "prepend": True}
        if host.outer is not host.core:
            handles.append(host.outer.register_forward_pre_hook(self._on_outer, **before))
        handles.append(host.core.register_forward_pre_hook(self._on_core, **before))
        handles.append(host.text.register_forward_pre_hook(self._on_text, **before))
        handles.append(host.text.register_forward_hook(self._after_text))
        for index, layer in enumerate(host.layers):
            handles.append(layer.register_forward_pre_hook(self._on_layer(index), **before))
        for handle in handles:
            stack.callback(handle.remove)

    def _hear_tower(self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> None:
        if self.host.has_cls:
            first = torch.zeros(len(query), dtype=torch.long, device=query.device)
            # A tower's mask, if any, hides keys; without one every query sees all of them.
            seen = (
                mask
                if mask is not None
                else query.new_ones((1, 1, query.shape[2], key.shape[2]), dtype=torch.bool)
            )
            rows = attention_of_row(query, key, seen, scaling, first)[:, 1:]
        else:
            rows = attention_received(query, key, mask, scaling)
        self.host.tower_rows.append(rows.flatten() if self.host.mrope else rows)

    # The hooks, from the outside in.

    def _on_outer(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_call(self.host.outer, args, kwargs, any_stage=bool(self.plan.stages))

    def _on_core(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            names = list(inspect.signature(module.forward).parameters)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        check_call(module, (), kwargs, any_stage=bool(self.plan.stages))
        refuse_video(kwargs)
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            self._step, kwargs = self._continue(cache, kwargs)
        else:
            self._step, kwargs = self.begin(kwargs)
        return (), kwargs

    def _on_text(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        step, self._step = self._step, None
        if step is not None:
            step.has_grad = torch.is_grad_enabled()
            kwargs = {**kwargs, _STEP: step}
        return args, kwargs

    def _after_text(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Checkpointed layers run again in backward, and must find their hooks."""
        hidden = output[0]
        if module.training and hidden.requires_grad and self._is_checkpointed():
            hidden.register_hook(self._check_open)

    def _is_checkpointed(self) -> bool:
        return any(getattr(layer, "gradient_checkpointing", False) for layer in self.host.layers)

    def _check_open(self, _gradient: Tensor) -> None:
        if not self.is_open:
            raise EligoError(
                "pruning: backward() runs after the context was left, but gradient checkpointing "
                "runs layers again there; expected backward() inside the `with` block"
            )

    def _on_layer(self, index: int) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
        def hook(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            step: Step | None = kwargs.pop(_STEP, None)
            if step is None:
                return args, kwargs
            hidden = args[0] if args else kwargs.pop("hidden_states")
            cache = kwargs.get("past_key_values")
            if index == 0 and step.prompt and cache is not None:
                self._frames[cache] = step.frame
            if index + 1 in self.cuts and step.prompt:
                self._listen(index, step.frame)
            hidden, changed = self.dress(index, step, hidden, kwargs)
            return (hidden, *args[1:]), {**kwargs, **changed}

        return hook

    def dress(
        self, layer: int, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """The input of a layer, and the arguments to change."""
        raise NotImplementedError

    def merge(
        self, reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]
    ) -> tuple[Selection, Tensor, Tensor | None, Tensor | None]:
        """Stage 1: choice in raster order, reduced features, sizes, key bias."""
        raise NotImplementedError

    # A prompt with images.

    def begin(self, kwargs: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        """Read and reduce it; returns what the core is to be called with instead."""
        host, input_ids = self.host, kwargs.get("input_ids")
        if input_ids is None:
            raise InputError(
                "pruning: got inputs_embeds without input_ids; expected input_ids, which say "
                "where the image tokens are"
            )
        mask = kwargs.get("attention_mask")
        self._check_mask(mask, input_ids, kwargs)
        self._encode(kwargs)
        assert host.capture is not None
        prompt = read_prompt(
            input_ids,
            host.image_token_id,
            host.capture,
            mask,
            self.question_mask,
            self._prompt_length(input_ids, kwargs),
        )
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = host.prompt_positions(kwargs, input_ids)
        self.trace.clear()
        self.trace.grid, self.trace.rows = prompt.grid, prompt.rows
        self.trace.num_columns = input_ids.shape[1]
        frame, embeds = self._reduce(prompt)
        self.trace.merged_columns = self.output_columns(frame)
        changed: dict[str, Any] = {name: None for name in _IMAGES if name in kwargs}
        changed |= {"input_ids": None, "inputs_embeds": embeds}
        changed["position_ids"] = self._kept_positions(positions, frame)
        if mask is not None:
            mask = take(mask, frame.kept)
        elif frame.base.ragged:
            mask = (frame.kept >= 0).long()
        elif kwargs.get("past_key_values") is None:
            # Without a mask and a cache, a gap in the positions reads as the start of another
            # sequence that was packed behind this one.
            mask = torch.ones_like(frame.kept)
        changed["attention_mask"] = mask
        if kwargs.get("token_type_ids") is not None:
            changed["token_type_ids"] = take(kwargs["token_type_ids"], frame.kept)
        return Step(frame, prompt=True), {**kwargs, **changed}

    def _check_mask(self, mask: Any, input_ids: Tensor, kwargs: Mapping[str, Any]) -> None:
        if mask is None:
            return
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(
                f"pruning: got an attention_mask {shape}; expected one of shape (batch, length): "
                "masks of queries and keys (packed samples, static caches) cannot be followed; "
                "questions packed behind one image cannot share a selection either"
            )
        cached = kwargs.get("past_key_values") is not None or kwargs.get("use_cache") is True
        if cached and len(input_ids) > 1 and bool((mask[:, -1] == 0).any()):
            raise InputError(
                "pruning: got a batch padded on the right; expected padding on the left for "
                "generation: processor.tokenizer.padding_side = 'left'"
            )

    def _encode(self, kwargs: Mapping[str, Any]) -> None:
        outputs = kwargs.get("mm_encoder_outputs")
        given = isinstance(outputs, Mapping) and outputs.get("image") is not None
        if kwargs.get("pixel_values") is not None:
            self.host.encode(kwargs)
        elif not given:
            raise InputError(
                "pruning: got a prompt without an image; expected pixel_values, and the prompt in "
                "one piece: run text alone outside of pruning; chunked prefill is not supported"
            )
        if self.host.capture is None:
            raise InputError(
                "pruning: got image features that were computed outside of this context; expected "
                "pixel_values, or features computed inside: stage 1 reads what the projector got"
            )

    def _prompt_length(self, input_ids: Tensor, kwargs: Mapping[str, Any]) -> int:
        """Without a cache every step repeats the prompt: what was generated is no question."""
        known = self._prompt_ids
        if (
            known is not None
            and kwargs.get("use_cache") is False
            and len(known) == len(input_ids)
            and known.shape[1] < input_ids.shape[1]
            and torch.equal(known, input_ids[:, : known.shape[1]])
        ):
            return known.shape[1]
        self._prompt_ids = input_ids
        return input_ids.shape[1]

    def _reduce(self, prompt: Prompt) -> tuple[Frame, Tensor]:
        """Stage 1, if there is one, and the embeddings of what is left."""
        host, stage = self.host, self.plan.stage1
        assert host.capture is not None
        counts = [self.plan.counts(grid) for grid in prompt.grids]
        embeds = host.embed(prompt.input_ids)
        batch, length = prompt.input_ids.shape
        place = torch.arange(prompt.columns.shape[-1], device=embeds.device)
        positions = place.expand(prompt.columns.shape).masked_fill(prompt.columns < 0, -1)
        if stage is None:
            vision = prompt.of_images(host.capture.projected).to(embeds.device, embeds.dtype)
            embeds = put(embeds, vision, prompt.columns, prompt.rows)
            kept = torch.arange(length, device=embeds.device).expand(batch, length)
            base = Layout(
                index=None,
                images=prompt.columns,
                positions=positions,
                sizes=None,
                counts=prompt.counts,
                lengths=[length] * batch,
                rows=prompt.rows,
            )
            return Frame(prompt, kept, base, counts), embeds
        features = prompt.of_images(host.capture.features)
        question = question_of(embeds, prompt.words, prompt)
        cls_row = host.capture.cls_row
        context = ReducerContext(
            features=features,
            mask=prompt.columns >= 0,
            positions=positions,
            grid=prompt.grid,
            question=question[0],
            question_mask=question[1],
            cls_row=None if cls_row is None else prompt.of_images(cls_row),
            scene=self._scene(prompt, positions),
        )
        wanted = [count[0] for count in counts]
        watch = Stopwatch(embeds.device)
        selection, merged, sizes, key_bias = self.merge(
            stage.reducer, context, torch.tensor(wanted)
        )
        watch.stop()
        vision = host.project(merged.to(features.dtype)).to(embeds.device, embeds.dtype)
        columns = ops.gather(prompt.columns, selection.indices).masked_fill(
            selection.indices < 0, -1
        )
        keep = ~prompt.vision | marks(columns, prompt.rows, batch, length)
        lengths = fewer([length] * batch, prompt.image_rows, prompt.counts, wanted)
        kept = ops.align_right(keep, max(lengths))
        embeds = take(put(embeds, vision, columns, prompt.rows), kept)
        where = inverse(kept, length)
        positions = raster(positions, selection)
        base = Layout(
            index=None,
            images=follow(columns, where, prompt.rows),
            positions=positions,
            sizes=sizes,
            counts=wanted,
            lengths=lengths,
            rows=prompt.rows,
            key_bias=key_bias,
        )
        # Made here, once: in a layer, checkpointing would expect it to be made again.
        _ = base.column_bias
        self.trace.stages.append(StageTrace(0, stage.reducer.name, selection, positions, watch))
        return Frame(prompt, kept, base, counts), embeds

    def _kept_positions(self, positions: Tensor, frame: Frame) -> Tensor:
        if self.plan.positions == "reindex" and frame.dropped:
            positions = positions - dropped_before(frame.kept, frame.length)
        return take_last(positions, frame.kept)

    # Tokens after it.

    def _continue(self, cache: Any, kwargs: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        frame = self._frames.get(cache)
        if frame is None:
            raise InputError(
                "pruning: got a cache that was not filled inside this context; expected all turns "
                "of a conversation, and the cache itself (not a copy), in one `with pruning(...)`"
            )
        outputs = kwargs.get("mm_encoder_outputs")
        if kwargs.get("pixel_values") is not None or (outputs and outputs.get("image") is not None):
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
        self._check_cache(cache, frame, cached)
        changed: dict[str, Any] = {name: None for name in _IMAGES if name in kwargs}
        for name in ("input_ids", "token_type_ids"):
            if kwargs.get(name) is not None:
                changed[name] = kwargs[name][:, -new:]
        if kwargs.get("inputs_embeds") is not None:
            changed["inputs_embeds"] = kwargs["inputs_embeds"][:, -new:]
        times = batch // frame.base.batch
        kept = frame.kept.repeat_interleave(times, 0)
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = self.host.next_positions(frame.length + cached, new, given.device)
        if self.plan.positions == "reindex":
            positions = positions - num_dropped(kept, frame.length)
        changed["position_ids"] = positions[..., -new:]
        mask = kwargs.get("attention_mask")
        if mask is not None:
            mask = torch.cat([take(mask, kept), mask[:, frame.length :]], dim=-1)
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
            total = self.host.logical_length(positions)
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

    def _check_cache(self, cache: Any, frame: Frame, cached: int) -> None:
        for layer, layout in frame.layouts.items():
            found = cache.get_seq_length(layer)
            if found != layout.width + cached:
                raise InputError(
                    f"pruning: the cache of layer {layer} has {found} columns, expected "
                    f"{layout.width + cached}; it was changed outside (assisted decoding and "
                    "cropped caches are not supported)"
                )

    # What reducers see.

    def context_at(
        self, layer: int, frame: Frame, layout: Layout, hidden: Tensor
    ) -> ReducerContext:
        """The vision tokens at a layer's input."""
        device, prompt = hidden.device, frame.prompt
        images, rows = layout.images.to(device), layout.rows.to(device)
        if list(prompt.image_rows) == list(range(layout.batch)):
            features = ops.gather(hidden, images)
        else:
            features = ops.gather(hidden[rows], images)
        reducer = self.cuts[layer].reducer
        question: tuple[Tensor | None, Tensor | None] = (None, None)
        if "question" in reducer.needs:
            question = question_of(hidden, self._words(frame, layout), prompt)
        row = frame.rows.get(layer - 1)
        if row is not None:
            row = ops.gather(row.to(device)[rows], images)
        positions = layout.positions.to(device)
        return ReducerContext(
            features=features,
            mask=images >= 0,
            positions=positions,
            grid=prompt.grid.to(device),
            sizes=None if layout.sizes is None else layout.sizes.to(device),
            question=question[0],
            question_mask=question[1],
            attention_row=row,
            scene=self._scene(prompt, positions),
        )

    def _words(self, frame: Frame, layout: Layout) -> Tensor:
        """Columns of the prompt's text in a layout: text is never dropped, but it moves."""
        if layout not in frame.words:
            words = follow(frame.prompt.words, inverse(frame.kept, frame.length), None)
            if layout.index is not None:
                words = follow(words, inverse(layout.index, frame.base.width), None)
            frame.words[layout] = words
        return frame.words[layout]

    def _scene(self, prompt: Prompt, positions: Tensor) -> Bool[Tensor, "images tokens"] | None:
        if self.scene is None:
            return None
        if max(prompt.source) >= len(self.scene) or self.scene.shape[1] < max(prompt.counts):
            raise InputError(
                f"pruning: got a scene of shape {tuple(self.scene.shape)}; expected a row per "
                f"image ({max(prompt.source) + 1}) and a column per token ({max(prompt.counts)})"
            )
        rows = self.scene.to(positions.device)[torch.tensor(prompt.source)]
        return ops.gather(rows, positions)

    def _listen(self, layer: int, frame: Frame) -> None:
        """Have the attention of `layer` leave the row that the cut behind it ranks by."""
        recorder, cut = self._recorder, self.cuts[layer + 1]
        if recorder is None or "attention_row" not in cut.reducer.needs:
            return
        attention: nn.Module = self.host.layers[layer].self_attn  # pyright: ignore

        def hear(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float) -> None:
            recorder.listeners.pop(attention, None)
            layout = self.seen_by(layer, frame)
            place = inverse(frame.kept, frame.length).gather(1, frame.prompt.last_word[:, None])
            if layout.index is not None:
                place = inverse(layout.index, frame.base.width).gather(1, place)
            frame.rows[layer] = attention_of_row(query, key, mask, scaling, place[:, 0])

        recorder.listeners[attention] = hear

    def budgets(self, layer: int, frame: Frame) -> list[int]:
        """Per image: how many tokens the cut at a layer keeps."""
        stage = self.plan.stages.index(self.cuts[layer])
        return [counts[stage] for counts in frame.counts]

    def output_columns(self, frame: Frame) -> Tensor | None:
        """Columns that the logits will have, if not those of the last layer."""
        del frame
        return None

    def seen_by(self, layer: int, frame: Frame) -> Layout:
        """How the columns of a layer are laid out."""
        return frame.layouts.get(layer, frame.base)


def ask(reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]) -> Selection:
    """A reducer's choice, in raster order; a learned one may live on another device."""
    home = context.features.device
    if isinstance(reducer, nn.Module):
        parameter = next(reducer.parameters(), None)
        if parameter is not None and parameter.device != home:
            moved = {
                name: value.to(parameter.device)
                for name, value in vars(context).items()
                if isinstance(value, Tensor)
            }
            context = replace(context, **moved)
    with torch.no_grad():
        selection = reducer.select(context, budget)
    check_selection(reducer, selection, context, budget)
    return (
        selection.to(home).in_order() if selection.scores.device != home else selection.in_order()
    )


def put(embeds: Tensor, vision: Tensor, columns: Tensor, rows: Tensor) -> Tensor:
    """Vision features at their columns."""
    length = embeds.shape[1]
    slots = torch.where(columns < 0, length, columns)
    spare = torch.nn.functional.pad(embeds, (0, 0, 0, 1))  # a column that takes the padding
    return spare.index_put((rows[:, None].expand(slots.shape), slots), vision)[:, :length]


def marks(columns: Tensor, rows: Tensor, batch: int, width: int) -> Tensor:
    """True at the given columns."""
    return spread(torch.ones_like(columns, dtype=torch.bool), columns, rows, batch, width)


def raster(positions: Tensor, selection: Selection) -> Tensor:
    """Positions of what was kept."""
    return ops.gather(positions, selection.indices).masked_fill(selection.indices < 0, -1)


def follow(columns: Tensor, where: Tensor, rows: Tensor | None) -> Tensor:
    """Columns after a move; -1 stays."""
    where = where if rows is None else where[rows]
    return ops.gather(where, columns).masked_fill(columns < 0, -1)


def fewer(
    lengths: Sequence[int], rows: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> list[int]:
    """Lengths of the batch's rows when their images have fewer tokens."""
    lengths = list(lengths)
    for row, had, has in zip(rows, before, after, strict=True):
        lengths[row] -= had - has
    return lengths


def dropped_before(kept: Tensor, length: int) -> Tensor:
    """Per column: how many before it are gone."""
    return (inverse(kept, length) < 0).long().cumsum(-1)


def num_dropped(kept: Tensor, length: int) -> Tensor:
    """Per row: how many columns are gone."""
    return length - (kept >= 0).sum(-1, keepdim=True)
