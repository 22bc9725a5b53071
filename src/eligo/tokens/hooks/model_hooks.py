"""The hooks on one model, shared by all contexts that are open on it.

A forward pass belongs to the context that its thread or asyncio task opened, else to the only one
that is open; with several open ones it is refused. The core's hook finds the context, rewrites the
arguments and leaves a `Step` for the text model's hook, which sends it along to the layers as an
argument, where their hooks take it away. So a pass carries its context and state with it: also
through threads of autograd that run a checkpointed layer again, where no thread-local would follow.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from eligo.errors import EligoError
from eligo.tokens.hooks.attention import listeners
from eligo.tokens.hooks.checks import check_call
from eligo.tokens.hooks.frame import Step
from eligo.tokens.hosts import Host

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import Session

Call = tuple[tuple[Any, ...], dict[str, Any]]

_STEP = "eligo_step"
_CACHE = "past_key_values"
_lock = threading.RLock()
_own: ContextVar[tuple["Session", ...]] = ContextVar("eligo_sessions", default=())
_hooked: WeakKeyDictionary[nn.Module, "ModelHooks"] = WeakKeyDictionary()


class _Pass(threading.local):
    """The forward pass of the core that a thread is in."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.step: Step | None = None


class ModelHooks:
    """Hooks on the core, its tower, its text model and its layers.

    They stay until the last context is left: torch reads which hooks take keyword arguments while
    it calls them, so one that goes (or comes) in another thread's call may be called without.
    """

    def __init__(self, host: Host) -> None:
        self.core, self.users = host.core, 0
        self.sessions: list[Session] = []
        self._hosts: dict[Any, Host] = {}
        self._outers: list[nn.Module] = []
        self._pass = _Pass()
        self._stack = ExitStack()
        for name, value in host.state().items():
            self._stack.callback(setattr, host.core, name, value)
        self._before(host.core, self._on_core)
        self._before(host.text, self._on_text)
        for index, layer in enumerate(host.layers):
            self._before(layer, self._on_layer(index))
        self._before(host.tower, self._on_tower)
        for handle in (
            host.core.register_forward_hook(self._after_core, always_call=True),
            host.text.register_forward_hook(self._after_text, with_kwargs=True),
            host.tower.register_forward_hook(self._after_tower),
        ):
            self._stack.callback(handle.remove)

    def host(self, host: Host, made_by: Any) -> Host:
        """The adapter that all contexts of its kind share; its hooks capture for all of them."""
        if made_by not in self._hosts:
            self._hosts[made_by] = host
            for handle in host.hooks():
                self._stack.callback(handle.remove)
        if host.outer is not host.core and not any(one is host.outer for one in self._outers):
            self._outers.append(host.outer)
            self._before(host.outer, self._on_outer)
        return self._hosts[made_by]

    def remove(self) -> None:
        """Leave the model as it was."""
        self._stack.close()

    def _before(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        handle = module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)
        self._stack.callback(handle.remove)

    def _on_outer(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        session = None if kwargs is None else session_of(self.core, kwargs.get(_CACHE))
        if session is not None and kwargs is not None:
            check_call(module, args, kwargs, any_stage=bool(session.plan.stages))

    def _on_tower(self, _module: nn.Module, *_: Any) -> None:
        session = session_of(self.core)
        if session is not None:
            session.enter_tower()

    def _after_tower(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        session = session_of(self.core)
        if session is not None:
            session.leave_tower(output)

    def _on_core(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Call | None:
        session = None if kwargs is None else session_of(module, kwargs.get(_CACHE))
        if session is None or kwargs is None:
            return None
        session.begin_pass()
        self._pass.session = session
        self._pass.step, kwargs = session.enter_core(module, args, kwargs)
        return (), kwargs

    def _after_core(self, *_: Any) -> None:
        session, self._pass.session, self._pass.step = self._pass.session, None, None
        listeners().clear()
        if session is not None:
            session.end_pass()

    def _on_text(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Call | None:
        step, self._pass.step = self._pass.step, None
        if step is None or kwargs is None:
            return None
        step.has_grad = torch.is_grad_enabled()
        return args, {**kwargs, _STEP: step}

    def _on_layer(self, index: int) -> Callable[..., Call | None]:
        def hook(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
        ) -> Call | None:
            step: Step | None = None if kwargs is None else kwargs.pop(_STEP, None)
            if step is None or kwargs is None:
                return None
            return step.session.enter_layer(index, step, args, kwargs)

        return hook

    def _after_text(self, module: nn.Module, _args: tuple[Any, ...], *rest: Any) -> None:
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if (step := kwargs.get(_STEP)) is not None:
            step.session.leave_text(module, output)


def session_of(core: nn.Module, cache: Any = None) -> "Session | None":
    """The open context that a call of this thread or task belongs to.

    Text that goes on behind a cache belongs to the context in which that was filled.
    """
    for session in reversed(_own.get()):
        if session.is_open and session.host.core is core:
            return session
    hooks = _hooked.get(core)
    found = [] if hooks is None else list(hooks.sessions)
    if len(found) > 1 and cache is not None:
        found = [session for session in found if session.has_filled(cache)] or found
    if len(found) > 1:
        raise EligoError(
            f"pruning: {len(found)} contexts are open on this model, and this thread opened none "
            "of them; expected one to choose: call the model in the thread that opened the "
            "context, or open one here"
        )
    return found[0] if found else None


@contextmanager
def hooks_on(host: Host, made_by: Any) -> Iterator[Host]:
    """Inside, the model has its hooks; contexts may overlap, and share an adapter."""
    core = host.core
    with _lock:
        if core not in _hooked:
            _hooked[core] = ModelHooks(host)
        hooks = _hooked[core]
        hooks.users += 1
        shared = hooks.host(host, made_by)
    try:
        yield shared
    finally:
        with _lock:
            hooks.users -= 1
            if not hooks.users:
                del _hooked[core]
                hooks.remove()


def refuse_nesting(core: nn.Module) -> None:
    """Raise if this thread or task is inside a context of this model."""
    if any(session.is_open and session.host.core is core for session in _own.get()):
        raise EligoError(
            "pruning: this model is already inside a `pruning(...)` block of this thread; close "
            "that block first: nesting is not supported"
        )


def register(session: "Session") -> None:
    """From now on passes may belong to it: those of this thread do."""
    with _lock:
        _hooked[session.host.core].sessions.append(session)
    _own.set((*_own.get(), session))


def unregister(session: "Session") -> None:
    """Undo `register`; also in another thread than that which opened the context."""
    _own.set(tuple(other for other in _own.get() if other is not session))
    with _lock:
        _hooked[session.host.core].sessions.remove(session)
