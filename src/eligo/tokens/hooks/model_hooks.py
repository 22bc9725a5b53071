"""The hooks on one model, shared by all contexts that are open on it.

A forward pass belongs to the context that its thread or asyncio task opened, else to the only open
one; if several are open, that is an error. The core's hook finds the context, rewrites the
arguments and stores a `ForwardPass` for the text model's hook, which passes it to the layers as a
keyword argument. Unlike a thread-local, that also reaches the autograd threads that run a
checkpointed layer again.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from eligo.errors import EligoError
from eligo.tokens.hooks.attention import recorders
from eligo.tokens.hooks.context import ForwardPass, Kwargs
from eligo.tokens.hooks.shared_tower import SHARED, SharedTower
from eligo.tokens.hosts import Host, host_of

if TYPE_CHECKING:
    from eligo.tokens.hooks.session import PruningSession

Args = tuple[Any, ...]
Call = tuple[Args, Kwargs]

PASS = "eligo_pass"
"""The keyword argument with which the language model and its layers get a `ForwardPass`."""
_CACHE = "past_key_values"
_lock = threading.RLock()
_own: ContextVar[tuple["PruningSession", ...]] = ContextVar("eligo_sessions", default=())
_hooked: WeakKeyDictionary[nn.Module, "ModelHooks"] = WeakKeyDictionary()


class _Current(threading.local):
    """The forward pass of the core that a thread is in."""

    session: "PruningSession | None" = None
    forward: ForwardPass | None = None
    has_images: bool = False


class ModelHooks:
    """Hooks on the core, its tower, its text model and its layers.

    They stay until the last context is closed: torch reads which hooks take keyword arguments while
    it calls them, so a hook that another thread removes (or adds) may be called without any.
    """

    def __init__(self, host: Host) -> None:
        self.core, self.users = host.core, 0
        self.sessions: list[PruningSession] = []
        self._hosts: dict[Any, Host] = {}
        self._outers: list[nn.Module] = []
        self._current = _Current()
        self._stack = ExitStack()
        self._text, self._tower, self._has_replays = host.text, host.tower, False
        for name, value in host.state().items():
            self._stack.callback(setattr, host.core, name, value)
        self._before(host.core, self._on_core)
        self._before(host.text, self._on_text)
        for index, layer in enumerate(host.layers):
            self._before(layer, partial(self._on_layer, index))
        self._before(host.tower, self._on_tower)
        for handle in (
            host.core.register_forward_hook(self._after_core, always_call=True),
            host.text.register_forward_hook(self._after_text, with_kwargs=True),
            host.tower.register_forward_hook(self._after_tower),
        ):
            self._stack.callback(handle.remove)

    def host(self, host: Host, factory: Any) -> Host:
        """Return the adapter shared by contexts with the same `factory`, with its hooks."""
        if factory not in self._hosts:
            self._hosts[factory] = host
            for handle in host.hooks():
                self._stack.callback(handle.remove)
        if host.outer is not host.core and not any(outer is host.outer for outer in self._outers):
            self._outers.append(host.outer)
            self._before(host.outer, self._on_outer)
        return self._hosts[factory]

    def allow_replays(self) -> None:
        """Let earlier results replace tower and language model, until the last context closes."""
        if not self._has_replays:
            self._has_replays = True
            self._replace(self._text, self._run_text)
            self._replace(self._tower, self._run_tower)

    def _replace(self, module: nn.Module, run: Callable[..., Any]) -> None:
        """Give one module, not its class, another forward."""
        before = vars(module).get("forward")
        original = module.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return run(original, args, kwargs)

        module.forward = forward
        if before is None:
            self._stack.callback(delattr, module, "forward")
        else:
            self._stack.callback(setattr, module, "forward", before)

    def _run_text(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        replay = getattr(kwargs.get(PASS), "replay", None)
        output = None if replay is None else replay(kwargs)
        return original(*args, **kwargs) if output is None else output

    def _run_tower(self, original: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        session = session_of(self.core)
        if (shared := SHARED.get()) is not None:
            return shared(self._tower, session, original, args, kwargs)
        if session is None or session.graphs is None:
            return original(*args, **kwargs)
        return session.graphs.tower(session, original, args, kwargs)

    def remove(self) -> None:
        """Restore the model."""
        self._stack.close()

    def _before(self, module: nn.Module, hook: Callable[[nn.Module, Args, Kwargs], Any]) -> None:
        def with_kwargs(module: nn.Module, args: Args, kwargs: Kwargs | None = None) -> Any:
            return None if kwargs is None else hook(module, args, kwargs)

        handle = module.register_forward_pre_hook(with_kwargs, with_kwargs=True, prepend=True)
        self._stack.callback(handle.remove)

    def _on_outer(self, module: nn.Module, args: Args, kwargs: Kwargs) -> None:
        if (session := session_of(self.core, kwargs.get(_CACHE))) is not None:
            session.check_call(module, args, kwargs)

    def _on_tower(self, *_: Any) -> None:
        if (session := session_of(self.core)) is not None:
            session.enter_tower()

    def _after_tower(self, _module: nn.Module, _args: Args, output: Any) -> None:
        if (session := session_of(self.core)) is not None:
            session.leave_tower(output)

    def _on_core(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Call | None:
        if (session := session_of(module, kwargs.get(_CACHE))) is None:
            return None
        session.begin_pass()
        self._current.session = session
        self._current.forward, kwargs = session.enter_core(module, args, kwargs)
        self._current.has_images = self._current.forward is not None
        return (), kwargs

    def _after_core(self, _module: nn.Module, _args: Args, output: Any) -> None:
        session, self._current.session, self._current.forward = self._current.session, None, None
        recorders().clear()
        if session is not None:
            if not self._current.has_images:
                session.leave_text_only(getattr(output, _CACHE, None))
            session.end_pass()

    def _on_text(self, _module: nn.Module, args: Args, kwargs: Kwargs) -> Call | None:
        forward, self._current.forward = self._current.forward, None
        if forward is None:
            return None
        forward.has_grad = torch.is_grad_enabled()
        return args, {**kwargs, PASS: forward}

    def _on_layer(self, index: int, _module: nn.Module, args: Args, kwargs: Kwargs) -> Call | None:
        if (forward := kwargs.pop(PASS, None)) is None:
            return None
        return forward.session.enter_layer(index, forward, args, kwargs)

    def _after_text(self, module: nn.Module, _args: Args, *rest: Any) -> None:
        kwargs, output = rest if len(rest) == 2 else ({}, rest[0])
        if (forward := kwargs.get(PASS)) is not None:
            forward.session.leave_text(module, output)


def session_of(core: nn.Module, cache: Any = None) -> "PruningSession | None":
    """Return the open session that a call of this thread or task belongs to.

    Text that continues a cache belongs to the session in which the cache was filled.
    """
    for session in reversed(_own.get()):
        if session.is_open and session.host.core is core:
            return session
    hooks = _hooked.get(core)
    sessions = [] if hooks is None else list(hooks.sessions)
    if len(sessions) > 1 and cache is not None:
        sessions = [session for session in sessions if session.has_filled(cache)] or sessions
    if len(sessions) > 1:
        raise EligoError(
            f"pruning: {len(sessions)} contexts are open on this model, none by this thread; call "
            "the model in the thread that opened the context, or open one here"
        )
    return sessions[0] if sessions else None


@contextmanager
def hooks_on(host: Host, factory: Any) -> Iterator[Host]:
    """Inside, the model has its hooks; contexts may overlap and share an adapter."""
    core = host.core
    with _lock:
        if core not in _hooked:
            _hooked[core] = ModelHooks(host)
        hooks = _hooked[core]
        hooks.users += 1
        shared = hooks.host(host, factory)
    try:
        yield shared
    finally:
        with _lock:
            hooks.users -= 1
            if not hooks.users:
                del _hooked[core]
                hooks.remove()


def allow_replays(core: nn.Module) -> None:
    """Let earlier results take the place of parts of a model with hooks."""
    with _lock:
        _hooked[core].allow_replays()


@contextmanager
def sharing_tower(model: nn.Module) -> Iterator[None]:
    """Inside, the vision tower runs once for plans that see the same images in turn."""
    with hooks_on(host_of(model), None) as host:
        allow_replays(host.core)
        token = SHARED.set(SharedTower())
        try:
            yield
        finally:
            SHARED.reset(token)


def refuse_nesting(core: nn.Module) -> None:
    """Raise if this thread or task is inside a context of this model."""
    if any(session.is_open and session.host.core is core for session in _own.get()):
        raise EligoError(
            "pruning: this model is already inside a `pruning(...)` block of this thread; close "
            "that block first: nesting is not supported"
        )


def register(session: "PruningSession") -> None:
    """Make a session available to forward passes, with priority to those of this thread."""
    with _lock:
        _hooked[session.host.core].sessions.append(session)
    _own.set((*_own.get(), session))


def unregister(session: "PruningSession") -> None:
    """Undo `register`, from any thread."""
    _own.set(tuple(other for other in _own.get() if other is not session))
    with _lock:
        _hooked[session.host.core].sessions.remove(session)
