"""One `pruning` or `masking` context: what both forms share.

The hooks themselves are those of `model_hooks`. Stage 1 acts at the core (the model without head)
rather than at the outermost model, because PEFT calls the `forward` of the outermost one directly,
and then no hook of it runs; the arguments are the same.
"""

import inspect
import threading
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Int
from torch import Tensor, nn

from eligo.errors import EligoError
from eligo.selection import Selection
from eligo.tokens.hooks.attention import listeners, recording
from eligo.tokens.hooks.checks import check_call, check_reducers
from eligo.tokens.hooks.context import Views
from eligo.tokens.hooks.frame import Frame, Step
from eligo.tokens.hooks.model_hooks import (
    Call,
    hooks_on,
    refuse_nesting,
    register,
    unregister,
)
from eligo.tokens.hooks.prefill import Entrance
from eligo.tokens.hosts import Host, host_of, refuse_video
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Need, Reducer, ReducerContext
from eligo.tokens.trace import LatestTrace

_ROWS: Set[Need] = frozenset({"attention_row", "question_rows"})


class Session:
    """What one open context does to the passes that belong to it. Subclasses say what a cut does.

    Any number of threads may be inside one context, each in a pass of its own.
    """

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
        self.cuts = dict(zip(self.plan.layers, self.plan.cuts, strict=True))
        self.trace = LatestTrace()
        self._question_mask, self._scene, self._made_by = question_mask, scene, make_host
        self.is_open = False
        self._frames: WeakKeyDictionary[Any, Frame] = WeakKeyDictionary()
        self._stack = ExitStack()
        self._passes: list[int] = []  # the threads that are in a forward pass
        self._pass_ended = threading.Condition()

    def __enter__(self) -> "Session":
        refuse_nesting(self.host.core)
        with ExitStack() as stack:
            self.host = host = stack.enter_context(hooks_on(self.host, self._made_by))
            needs = {need for cut in self.plan.cuts for need in cut.reducer.needs}
            if needs & _ROWS:
                stack.enter_context(recording(host.text.config, "the language model"))
            if self._needs_tower_rows:
                stack.enter_context(recording(host.tower.config, "the vision tower"))
            self._stack = stack.pop_all()
        self.views = Views(host, self._scene)
        self.entrance = Entrance(host, self.plan, self._question_mask, self.views, self.merge)
        self.is_open = True
        register(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._pass_ended:
            self.is_open = False
            unregister(self)
            here = threading.get_ident()  # passes of other threads end as they began
            self._pass_ended.wait_for(lambda: set(self._passes) <= {here})
        self._stack.__exit__(kind, error, traceback)
        for cache in list(self._frames):
            cache.update = _refuse_cache
        self._frames.clear()
        # It knows us: a circle, which would keep what the tower saw until the collector comes.
        del self.entrance

    @property
    def _needs_tower_rows(self) -> bool:
        return self.plan.stage1 is not None and "cls_row" in self.plan.stage1.reducer.needs

    # What a form of pruning has to say.

    def merge(
        self, reducer: Reducer, context: ReducerContext, budget: Int[Tensor, " images"]
    ) -> tuple[Selection, Tensor, Tensor | None, Tensor | None]:
        """Stage 1: choice in raster order, reduced features, sizes, key bias."""
        raise NotImplementedError

    def begin(self, kwargs: dict[str, Any]) -> tuple[Step, dict[str, Any]]:
        """A pass over a prompt; returns what the core is to be called with instead."""
        return self.entrance.begin(kwargs)

    def dress(
        self, layer: int, step: Step, hidden: Tensor, kwargs: Mapping[str, Any]
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """The input of a layer, and the arguments to change."""
        raise NotImplementedError

    def budgets(self, layer: int, frame: Frame) -> list[int]:
        """Per image: how many tokens the cut at a layer keeps."""
        stage = self.plan.layers.index(layer) + (self.plan.stage1 is not None)
        return [counts[stage] for counts in frame.counts]

    def has_filled(self, cache: Any) -> bool:
        """Whether this context has put a prompt into a cache."""
        return cache in self._frames

    def is_checkpointed(self) -> bool:
        """Whether layers run again in backward."""
        return any(getattr(layer, "gradient_checkpointing", False) for layer in self.host.layers)

    # What the hooks call, from the outside in.

    def begin_pass(self) -> None:
        """This thread enters the core."""
        with self._pass_ended:
            if not self.is_open:
                raise EligoError(
                    "pruning: the context was left while this call began; expected calls to end "
                    "inside the `with` block: join their threads there"
                )
            self._passes.append(threading.get_ident())

    def end_pass(self) -> None:
        """It has left it, by an error or not."""
        with self._pass_ended:
            self._passes.remove(threading.get_ident())
            self._pass_ended.notify_all()

    def enter_tower(self) -> None:
        """The tower is about to run, within `generate` or the core."""
        self.host.begin_tower()
        if self._needs_tower_rows:
            listeners()[self.host.tower_attention] = self.views.hear_tower

    def leave_tower(self, output: Any) -> None:
        """It has run; the projector may follow."""
        listeners().pop(self.host.tower_attention, None)
        self.host.end_tower(output)

    def enter_core(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Step, dict[str, Any]]:
        """A prompt, or tokens after it: the step, and what the core is to be called with."""
        if args:
            names = list(inspect.signature(module.forward).parameters)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        check_call(module, (), kwargs, any_stage=bool(self.plan.stages))
        refuse_video(kwargs)
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            step, kwargs = self.entrance.proceed(self._frames.get(cache), cache, kwargs)
        else:
            step, kwargs = self.begin(kwargs)
            self.trace.show(step.frame.trace)
        step.session = self
        return step, kwargs

    def enter_layer(
        self, index: int, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        """What a layer is to be called with."""
        hidden = args[0] if args else kwargs.pop("hidden_states")
        if step.prompt:
            cache = kwargs.get("past_key_values")
            if index == 0 and cache is not None:
                self._frames[cache] = step.frame
            after = self.cuts.get(index + 1)
            if after is not None and (rows := _ROWS & after.reducer.needs):
                self.views.listen(index, step.frame, rows)
        hidden, changed = self.dress(index, step, hidden, kwargs)
        kwargs.update(changed)
        return (hidden, *args[1:]), kwargs

    def leave_text(self, module: nn.Module, output: Any) -> None:
        """Checkpointed layers run again in backward, and must find their hooks."""
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
