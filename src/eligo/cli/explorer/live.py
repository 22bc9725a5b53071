"""`eligo explore --live`: serve the explorer on this machine, with the shipped or an own model."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from eligo.cli.console import messages, results
from eligo.errors import InputError

if TYPE_CHECKING:
    from eligo.cli.explorer.own_tool import DType


def serve(port: int, device: str, model: str | None = None, dtype: "DType" = "float32") -> None:
    """Serve on loopback until Ctrl-C; `port` 0 takes a free one. `model`: a user's own."""
    console = messages()
    console.print("loading torch ...", highlight=False)
    import torch

    from eligo.cli.explorer import live_tools
    from eligo.explorer.export import explorer_page
    from eligo.explorer.server import LiveServer
    from eligo.explorer.tools import describe
    from eligo.pretrained.devices import resolve_device

    place = str(resolve_device(device))
    if "OMP_NUM_THREADS" not in os.environ:
        # Leave cores to the browser and the server: with more threads than free cores, torch is
        # slower than with half as many.
        torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    what = "transformers, drawing scenes to try" if model is None else model
    console.print(f"loading {what} ...", highlight=False, markup=False, soft_wrap=True)
    tools = live_tools(place, model, dtype)
    if not tools:
        raise InputError(
            "this installation of eligo has no shipped models, so there is nothing to try; "
            "`eligo explore RUN` shows a run"
        )
    page = explorer_page([], title="live", live=describe(tools))
    server = LiveServer(page, tools, port=port)
    try:
        with _terminated_like_interrupted():
            results().print(f"eligo explorer: {server.url}", highlight=False, soft_wrap=True)
            titles = ", ".join(tool.title.lower() for tool in tools)
            console.print(f"to try, on {place}: {titles}", highlight=False, soft_wrap=True)
            if model is None:
                console.print("models are loaded on first use, which takes a moment")
            for tool in tools:
                if tool.about:
                    console.print(tool.about, highlight=False, markup=False, soft_wrap=True)
            console.print("only this machine can open it; Ctrl-C stops it", highlight=False)
            server.serve_forever()
    except KeyboardInterrupt:
        console.print("stopped", highlight=False)
    finally:
        server.close()


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, also where a shell ignores Ctrl-C."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {kind: signal.signal(kind, stop) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
