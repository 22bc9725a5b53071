"""The hooks behind `pruning` and `masking`: what both forms share.

Spec: "Integration with transformers 5.x". Departs from it in one place: stage 1 hooks the core
(the model without head) rather than the outermost model, because PEFT calls the `forward` of the
outermost one directly, and then no hook of it runs; the arguments are the same.

One forward pass: the core's hook reads the prompt, reduces (stage 1) and leaves a `Step` for the
text model's hook, which sends it along to the layers as an argument, where their hooks take it
away. So a step stays with its own pass, also when gradient checkpointing runs a layer again.
"""

import inspect
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor, nn

from eligo.errors import EligoError
from eligo.selection import Selection
from eligo.tokens.hosts import Host, host_of, refuse_video
from eligo.tokens.inside.attention import RowRecorder
from eligo.tokens.inside.checks import check_call, check_reducers
from eligo.tokens.inside.entrance import Entrance
from eligo.tokens.inside.frame import Frame, Step
from eligo.tokens.inside.views import Views
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Need, Reducer, ReducerContext
from eligo.tokens.trace import Trace

_STEP = "eligo_step"
_BEFORE: Mapping[str, Any] = {"with_kwargs": True, "prepend": True}
_ROWS: Set[Need] = frozenset({"attention_row", "question_rows"})
Call = tuple[tuple[Any, ...], dict[str, Any]]


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
        self.cuts = dict(zip(self.plan.layers, self.plan.cuts, strict=True))
        self.trace = Trace()
        self.views = Views(self.host, scene)
        self.entrance = Entrance(
            self.host, self.plan, question_mask, self.views, self.trace, self.merge
        )
        self._is_open = False
        self._step: Step | None = None
        self._frames: WeakKeyDictionary[Any, Frame] = WeakKeyDictionary()
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
        self._is_open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        self._stack.__exit__(kind, error, traceback)
        self._step = None
        self._frames.clear()
        # It knows us: a circle, which would keep what the tower saw until the collector comes.
        del self.entrance

    def _install(self, stack: ExitStack) -> None:
        host = self.host
        for name, value in host.state().items():
            stack.callback(setattr, host.core, name, value)
        needs = {need for cut in self.plan.cuts for need in cut.reducer.needs}
        if needs & _ROWS:
            recorder = RowRecorder(host.text.config, "the language model")
            self._recorder = stack.enter_context(recorder)
        if self.plan.stage1 is not None and "cls_row" in self.plan.stage1.reducer.needs:
            tower = stack.enter_context(RowRecorder(host.tower.config, "the vision tower"))
            tower.listeners[host.tower_attention] = self.views.hear_tower
        for handle in host.hooks():
            stack.callback(handle.remove)
        hooks = [(host.core, self._on_core), (host.text, self._on_text)]
        hooks += [(layer, self._on_layer(index)) for index, layer in enumerate(host.layers)]
        if host.outer is not host.core:
            hooks.append((host.outer, self._on_outer))
        for module, hook in hooks:
            stack.callback(module.register_forward_pre_hook(hook, **_BEFORE).remove)
        stack.callback(host.text.register_forward_hook(self._after_text).remove)

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

    def is_checkpointed(self) -> bool:
        """Whether layers run again in backward."""
        return any(getattr(layer, "gradient_checkpointing", False) for layer in self.host.layers)

    # The hooks, from the outside in.

    def _on_outer(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        check_call(self.host.outer, args, kwargs, any_stage=bool(self.plan.stages))

    def _on_core(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        if args:
            names = list(inspect.signature(module.forward).parameters)
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        check_call(module, (), kwargs, any_stage=bool(self.plan.stages))
        refuse_video(kwargs)
        cache = kwargs.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            self._step, kwargs = self.entrance.proceed(self._frames.get(cache), cache, kwargs)
        else:
            self._step, kwargs = self.begin(kwargs)
        return (), kwargs

    def _on_text(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        step, self._step = self._step, None
        if step is not None:
            step.has_grad = torch.is_grad_enabled()
            kwargs = {**kwargs, _STEP: step}
        return args, kwargs

    def _on_layer(self, index: int) -> Callable[..., Call]:
        after = self.cuts.get(index + 1)
        rows = _ROWS & after.reducer.needs if after is not None else frozenset()

        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            step: Step | None = kwargs.pop(_STEP, None)
            if step is None:
                return args, kwargs
            hidden = args[0] if args else kwargs.pop("hidden_states")
            cache = kwargs.get("past_key_values")
            if index == 0 and step.prompt and cache is not None:
                self._frames[cache] = step.frame
            if rows and step.prompt and self._recorder is not None:
                self.views.listen(self._recorder, index, step.frame, rows)
            hidden, changed = self.dress(index, step, hidden, kwargs)
            kwargs.update(changed)
            return (hidden, *args[1:]), kwargs

        return hook

    def _after_text(self, module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Checkpointed layers run again in backward, and must find their hooks."""
        hidden = output[0]
        if module.training and hidden.requires_grad and self.is_checkpointed():
            hidden.register_hook(self._check_open)

    def _check_open(self, _gradient: Tensor) -> None:
        if not self._is_open:
            raise EligoError(
                "pruning: backward() runs after the context was left, but gradient checkpointing "
                "runs layers again there; expected backward() inside the `with` block"
            )
