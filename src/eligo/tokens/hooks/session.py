"""Base class of `pruning` and `masking`: one open context, and the checks of its inputs.

The hooks are in `model_hooks`. Stage 1 acts at the core (the model without its head), not at the
outermost model, because PEFT calls the `forward` of the latter without its hooks.
"""

import inspect
import threading
from collections.abc import Callable, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from eligo.errors import EligoError, InputError
from eligo.tokens.hooks.attention import recorders, recording
from eligo.tokens.hooks.context import (
    ContextBuilder,
    ForwardPass,
    Kwargs,
    MergedTokens,
    PromptState,
    columns_of,
)
from eligo.tokens.hooks.layout import Layout, later_mask, prompt_mask, put, window_mask
from eligo.tokens.hooks.model_graphs import ModelGraphs, graphs_of
from eligo.tokens.hooks.model_hooks import (
    PASS,
    Args,
    Call,
    allow_replays,
    hooks_on,
    refuse_nesting,
    register,
    unregister,
)
from eligo.tokens.hooks.prefill import PrefillPatcher, check_video, refuse_image
from eligo.tokens.hosts import Host, host_of
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import TOWER_ROWS, Budget, Need, Reducer, ReducerContext
from eligo.tokens.trace import LatestTrace, Trace

_ROWS: Set[Need] = frozenset({"attention_row", "question_rows"})


class PruningSession:
    """An open context and the forward passes inside it; subclasses implement the cuts.

    Any number of threads may be inside one context, each in its own pass.
    """

    use_graphs = False
    graphs: ModelGraphs | None = None
    """CUDA graphs; None: everything runs as it is."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        question_mask: Tensor | None,
        scene: Tensor | None,
        host_factory: Callable[[nn.Module], Host] | None,
    ) -> None:
        self.host = host_of(model, host_factory)
        self._given_plan = plan
        self.plan = plan.resolve(len(self.host.layers), self.host.supply)
        check_plan(self.host, self.plan)
        self.cuts = dict(zip(self.plan.layers, self.plan.cuts, strict=True))
        self.trace = LatestTrace()
        self._question_mask, self._scene, self._host_factory = question_mask, scene, host_factory
        self.is_open = False
        self._states: WeakKeyDictionary[Any, PromptState] = WeakKeyDictionary()  # by cache
        self._text_caches: WeakSet[Any] = WeakSet()  # of prompts without an image
        self._stack = ExitStack()
        self._passes: list[int] = []  # threads that are in a forward pass
        self._pass_ended = threading.Condition()

    def __enter__(self) -> "PruningSession":
        refuse_nesting(self.host.core)
        with ExitStack() as stack:
            self.host = host = stack.enter_context(hooks_on(self.host, self._host_factory))
            if any(_ROWS & cut.reducer.needs for cut in self.plan.cuts):
                stack.enter_context(recording(host.text.config, "the language model"))
            if self.tower_needs():
                stack.enter_context(recording(host.tower.config, "the vision tower"))
            self._stack = stack.pop_all()
        self.contexts = ContextBuilder(host, self._scene)
        self.prefill = PrefillPatcher(self, self._question_mask)
        if self.use_graphs and (graphs := graphs_of(self, self._given_plan)) is not None:
            self.graphs = graphs
            allow_replays(host.core)
        self.is_open = True
        register(self)
        return self

    def __exit__(self, *error: Any) -> None:
        with self._pass_ended:
            self.is_open = False
            unregister(self)
            here = threading.get_ident()  # wait for the passes of other threads
            self._pass_ended.wait_for(lambda: set(self._passes) <= {here})
        self._stack.__exit__(*error)
        for cache in list(self._states):
            cache.update = _refuse_cache
        self._states.clear()
        # Break the reference cycle: it would keep tower features until garbage collection.
        del self.prefill

    def tower_needs(self) -> dict[nn.Module, list[Need]]:
        """Return the rows that stage 1 needs, by the attention in the tower that computes them."""
        found: dict[nn.Module, list[Need]] = {}
        needs = () if self.plan.stage1 is None else self.plan.stage1.reducer.needs
        for need in TOWER_ROWS:
            if need in needs:
                found.setdefault(self.host.tower_attention(need), []).append(need)
        return found

    # Implemented by subclasses.

    def merge(self, reducer: Reducer, context: ReducerContext, budget: Budget) -> MergedTokens:
        """Run stage 1."""
        raise NotImplementedError

    def adapt_inputs(
        self, layer: int, forward: ForwardPass, hidden: Tensor, kwargs: Kwargs
    ) -> tuple[Tensor, Kwargs]:
        """Return the input of a layer, and the arguments to change."""
        raise NotImplementedError

    def begin(self, kwargs: Kwargs) -> tuple[ForwardPass, Kwargs]:
        """Start a pass over a prompt; return it and the new arguments of the core."""
        return self.prefill.begin(kwargs)

    def budgets(self, layer: int, state: PromptState) -> list[int]:
        """Return how many tokens of each image the cut at a layer keeps."""
        stage = self.plan.layers.index(layer) + (self.plan.stage1 is not None)
        return [counts[stage] for counts in state.counts]

    def has_filled(self, cache: Any) -> bool:
        """Whether a prompt was written to a cache in this session."""
        return cache in self._states or cache in self._text_caches

    def remember(self, cache: Any, state: PromptState) -> None:
        """Note the prompt that a cache holds."""
        self._states[cache] = state

    def run_text(self, forward: Any, **kwargs: Any) -> Tensor:
        """Return the last hidden states of the language model, without hooks on itself."""
        text = self.host.text
        return type(text).forward(text, use_cache=True, **kwargs, **{PASS: forward})[0]

    def layer_mask(
        self, layer: int, forward: ForwardPass, layout: Layout, like: Tensor, kwargs: Kwargs
    ) -> Tensor | None:
        """Return the mask of a layer that sees `layout`.

        With sliding windows, the host's masks of what is left are of no use: they count the
        columns that are left, and those in the cache of one layer of each kind.
        """
        state, mask, flat = forward.state, kwargs.get("attention_mask"), self.host.is_flash
        if forward.is_prompt:
            if self.host.has_windows:
                mask = forward.prompt_masks[layer]
                layout = replace(layout, index=columns_of(state, layout))
            return prompt_mask(mask, layout, like, flat=flat)
        if self.host.has_windows:
            mask = self._later_window_mask(self.host.windows[layer], forward, like)
        length, num_queries = state.base.width, like.shape[1]
        mask = later_mask(mask, layout, length, forward.later, like, flat=flat)
        cache = kwargs.get("past_key_values")
        window = None if cache is None else getattr(cache.layers[layer], "sliding_window", None)
        if mask is None or window is None:
            return mask
        # The cache still has all keys of the window: fewer tokens reach further back.
        return mask[..., -(window - 1 + num_queries) :]

    def _later_window_mask(self, window: int | None, forward: ForwardPass, like: Tensor) -> Tensor:
        """Return the mask of later tokens over the columns of layer 0 and all later ones."""
        if window not in forward.window_masks:
            kept, length = forward.state.kept, forward.state.length
            kept = kept.repeat_interleave(forward.times, 0)
            later = torch.arange(length, length + forward.later, device=kept.device)
            columns = torch.cat([kept, later.expand(len(kept), -1)], -1)
            mask = window_mask(columns, like.shape[1], window, forward.key_mask)
            if self.host.attention == "eager":
                lowest = torch.finfo(like.dtype).min
                mask = torch.zeros_like(mask, dtype=like.dtype).masked_fill(~mask, lowest)
            forward.window_masks[window] = mask
        return forward.window_masks[window].to(like.device)

    def is_checkpointed(self) -> bool:
        """Whether layers run again in backward."""
        return any(getattr(layer, "gradient_checkpointing", False) for layer in self.host.layers)

    # Called by the hooks, from the outside in.

    def check_call(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Kwargs:
        """Return the arguments of a forward pass by name; raise if pruning cannot handle them."""
        if torch.compiler.is_compiling():
            raise EligoError(
                "pruning: the model is being compiled; expected eager execution: lengths change "
                "from layer to layer"
            )
        if args:
            names = inspect.signature(module.forward).parameters
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        if kwargs.get("labels") is not None and self.plan.stages:
            raise InputError(
                "pruning: got labels, which are longer than the logits will be; call the model "
                "without them and use eligo.tokens.answer_loss(outputs, labels, trace)"
            )
        cache = kwargs.get("past_key_values")
        if cache is not None and getattr(cache, "is_compileable", False):
            raise InputError(
                "pruning: got a static cache; expected a dynamic one (the default), whose layers "
                "may differ in length"
            )
        if cache is not None and any(getattr(cache, "is_sliding", [])):
            sizes = [getattr(layer, "sliding_window", None) for layer in cache.layers]
            pairs = zip(sizes, self.host.windows, strict=False)
            if any(size not in (None, window) for size, window in pairs):
                raise InputError(
                    f"pruning: got a cache with sliding-window layers of sizes {sizes}; expected "
                    f"those of the model, {self.host.windows}, or a cache without windows"
                )
        keep = kwargs.get("logits_to_keep", 0)
        if isinstance(keep, Tensor):
            raise InputError(
                "pruning: got logits_to_keep as indices, which count columns that may be dropped; "
                "expected a number of columns from the end"
            )
        if cache is not None and keep is not None and keep > 1:
            raise InputError(
                f"pruning: got logits_to_keep={keep} together with a cache, as assisted decoding "
                "does; expected plain generation: cropped caches are not supported"
            )
        return kwargs

    def begin_pass(self) -> None:
        """Enter the core in this thread."""
        with self._pass_ended:
            if not self.is_open:
                raise EligoError(
                    "pruning: the context was left while this call began; expected calls to end "
                    "inside the `with` block: join their threads there"
                )
            self._passes.append(threading.get_ident())

    def end_pass(self) -> None:
        """Leave the core in this thread, also after an error."""
        with self._pass_ended:
            self._passes.remove(threading.get_ident())
            self._pass_ended.notify_all()

    def enter_tower(self) -> None:
        """Prepare a call of the tower, within `generate` or the core."""
        self.host.begin_tower()
        for attention, needs in self.tower_needs().items():
            recorders()[attention] = partial(self.contexts.record_tower_attention, needs)

    def leave_tower(self, output: Any) -> None:
        """Finish a call of the tower; the projector may follow."""
        for attention in self.tower_needs():
            recorders().pop(attention, None)
        self.host.end_tower(output)

    def enter_core(
        self, module: nn.Module, args: Args, kwargs: Kwargs
    ) -> tuple[ForwardPass | None, Kwargs]:
        """Start a pass over a prompt or over later tokens; return it and the new arguments.

        None: the pass has no image, and the model runs as it is.
        """
        kwargs = self.check_call(module, args, kwargs)
        check_video(self.host, kwargs)
        cache = kwargs.get("past_key_values")
        if cache is not None and cache in self._text_caches:
            refuse_image(kwargs)
            return None, self.prefill.continue_text(cache, kwargs)
        if cache is not None and cache.get_seq_length() > 0:
            forward, kwargs = self.prefill.proceed(self._states.get(cache), cache, kwargs)
            if self.graphs is not None:
                forward.replay = self.graphs.step(self, forward, kwargs)
        elif self.prefill.is_text(kwargs):
            self.trace.show(Trace(num_columns=kwargs["input_ids"].shape[1]))
            return None, kwargs
        else:
            forward, kwargs = self.begin(kwargs)
            self.trace.show(forward.state.trace)
        forward.session = self
        return forward, kwargs

    def leave_text_only(self, cache: Any) -> None:
        """Remember the cache of a prompt without an image: its later turns run as they are."""
        if cache is not None:
            self._text_caches.add(cache)

    def enter_layer(self, index: int, forward: ForwardPass, args: Args, kwargs: Kwargs) -> Call:
        """Return the arguments of a layer."""
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if forward.is_prompt:
            cache = kwargs.get("past_key_values")
            if index == 0 and cache is not None:
                self.remember(cache, forward.state)
            after = self.cuts.get(index + 1)
            if after is not None and (rows := _ROWS & after.reducer.needs):
                self.contexts.record_attention(index, forward.state, rows)
            hidden = self._with_added(index - 1, forward.state, hidden)
        hidden, changed = self.adapt_inputs(index, forward, hidden, kwargs)
        kwargs.update(changed)
        return (hidden, *args[1:]), kwargs

    def _with_added(self, layer: int, state: PromptState, hidden: Tensor) -> Tensor:
        """Return the output of a layer with what the host adds to it (DeepStack)."""
        if not 0 <= layer < len(state.added):
            return hidden
        layout = state.layout_of(layer)
        added = state.added[layer].to(hidden.device, hidden.dtype)
        if layout is not state.base:
            # Repeated in every run: a checkpointed layer must do the same in backward.
            for stage in state.trace.stages:
                if 0 < stage.layer <= layer:
                    added = stage.selection.to(hidden.device).fold(added)
        images, rows = layout.images.to(hidden.device), state.prompt.rows.to(hidden.device)
        return hidden + put(torch.zeros_like(hidden), added, images, rows)

    def leave_text(self, module: nn.Module, output: Any) -> None:
        """Check in backward that the hooks are still there if checkpointed layers run again."""
        hidden = output[0]
        if module.training and hidden.requires_grad and self.is_checkpointed():
            hidden.register_hook(self._check_open)

    def _check_open(self, _gradient: Tensor) -> None:
        if not self.is_open:
            raise EligoError(
                "pruning: backward() runs after the context was left, but gradient checkpointing "
                "runs layers again there; expected backward() inside the `with` block"
            )


def _refuse_cache(*_: Any, **__: Any) -> None:
    raise EligoError(
        "pruning: the context in which this cache was filled has been left, and the cache has lost "
        "tokens; expected generation to end inside the `with` block: join its thread there"
    )


def check_plan(host: Host, plan: Plan) -> None:
    """Raise if a plan does not fit a host."""
    if plan.host is not None:
        plan.host.check(host)
    if plan.positions == "reindex" and host.mrope:
        raise InputError(
            f"{host.family}: got positions='reindex'; expected 'original': its positions have "
            "three axes and cannot be renumbered"
        )
    attention = host.attention
    if not host.is_flash and attention not in ("sdpa", "eager"):
        raise InputError(
            f"{host.family}: got attention {attention!r}; expected sdpa, eager or flash attention: "
            "load the model with attn_implementation='sdpa'"
        )
    if host.is_flash and plan.size_bias and plan.stages:
        raise InputError(
            "pruning: flash attention takes no key bias; expected size_bias=False in the plan, or "
            "attn_implementation='sdpa'"
        )
    for stage in plan.stages:
        is_first = stage is plan.stage1
        width = host.feature_width if is_first else host.text_width
        expected = getattr(stage.reducer, "width", None)
        if isinstance(expected, int) and expected != width:
            name = "tower features" if is_first else "the language model's states"
            raise InputError(
                f"{stage.reducer.name}: was made for a width of {expected}, but {name} are "
                f"{width} wide; expected a module that was trained on this host"
            )
