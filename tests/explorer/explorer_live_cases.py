"""A live server with tools that need no model, and a low-level HTTP client for it."""

import json
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from io import BytesIO
from threading import Event, Thread, current_thread
from typing import Any

import torch
from PIL import Image

from eligo.errors import EligoError, InputError
from eligo.explorer.record import Answer, ExplorerRecord, Grid, Stage
from eligo.explorer.server import LiveServer
from eligo.explorer.tools import (
    LiveBudget,
    LiveChoice,
    LiveExample,
    LiveRequest,
    LiveText,
    LiveTool,
)
from eligo.selection import Selection
from limits import REPLY_SECONDS

PAGE = "<!doctype html><title>live</title>"
RED = Image.new("RGB", (32, 24), (200, 0, 0))
DEPTH = Image.new("I;16", (32, 24), 1500)
GO = Event()
"""Requests with the text `hold` wait for this event."""
WORKED: list[str] = []
"""Texts of the requests that start with `tell`."""


def echo(request: LiveRequest) -> ExplorerRecord:
    """Returns the request as answers; some texts make it fail."""
    if request.text == "wrong":
        raise InputError("text: got wrong, expected right")
    if request.text == "foreseen":
        raise EligoError("the model is not well")
    if request.text == "bug":
        raise RuntimeError("secret of the house")
    if request.text == "hold":
        assert GO.wait(REPLY_SECONDS)
    if request.text.startswith("tell"):
        WORKED.append(request.text)
    assert request.image is not None
    picture = request.image.picture
    kept = Selection.top_k(torch.arange(6.0), int(request.budget or 0))
    answers = [
        Answer("text", request.text),
        Answer("image", f"{picture.mode} {picture.width} {picture.height}"),
        Answer("key", request.image.key),
        Answer("pixel", str(picture.getpixel((0, 0)))),
        Answer("thread", current_thread().name),
    ]
    if request.depth is not None:
        size = f"{request.depth.mode} {request.depth.size}"
        answers.append(Answer("depth", f"{size} {request.depth.getpixel((0, 0))}"))
    return ExplorerRecord(
        "echo", "echo", request.text, (Stage("kept", kept, Grid("image", 2, 3)),),
        {"image": picture}, tuple(answers),
    )  # fmt: skip


def tools() -> list[LiveTool]:
    examples = (
        LiveExample("red", "a red one", RED, "what colour?"),
        LiveExample("deep", "with depth", RED, "how far?", DEPTH),
    )
    budget = LiveBudget("kept", 1, 5, 2, 3, "cells")
    text = LiveText("question", "ask", "what?")
    return [
        LiveTool("echo", "Echo", text, echo, budget=budget, examples=examples),
        LiveTool(
            "deep", "Deep", text, echo, depth=True, examples=examples,
            choices=[LiveChoice("colour", "Colour", ("red", "blue"))],
        ),
        LiveTool("blind", "Blind", text, _blind, image=False, about="Sees nothing: `blind`."),
    ]  # fmt: skip


def _blind(request: LiveRequest) -> ExplorerRecord:
    assert request.image is None
    return ExplorerRecord(
        "blind", "echo", request.text, (), answers=(Answer("text", request.text),)
    )


@contextmanager
def serving(**options: Any) -> Iterator[LiveServer]:
    server = LiveServer(PAGE, options.pop("tools", None) or tools(), **options)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.close()
        thread.join(REPLY_SECONDS)


@contextmanager
def holding() -> Iterator[Event]:
    """Requests with the text `hold` block until the event is set or the context is left."""
    GO.clear()
    try:
        yield GO
    finally:
        GO.set()


def until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition that another thread brings about."""
    end = time.monotonic() + REPLY_SECONDS
    while not is_true():
        assert time.monotonic() < end, f"it did not happen within {REPLY_SECONDS} s"
        time.sleep(0.01)


class Reply:
    def __init__(self, response: HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert set(self.json) == {"error"}
        return self.json["error"]

    @property
    def answers(self) -> dict[str, str]:
        assert self.status == 200, self.body[:300]
        return {answer["who"]: answer["text"] for answer in self.json["record"]["answers"]}


def send(
    server: LiveServer,
    method: str,
    path: str,
    body: bytes | str | None = None,
    connection: HTTPConnection | None = None,
    **headers: str,
) -> Reply:
    own = connection or HTTPConnection("127.0.0.1", server.server_port, timeout=REPLY_SECONDS)
    try:
        own.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        return Reply(own.getresponse())
    finally:
        if connection is None:
            own.close()


def run(server: LiveServer, connection: HTTPConnection | None = None, **fields: Any) -> Reply:
    """Ask the tool `echo` on its first example, with changes; a value of ... leaves a key out."""
    whole = {"tool": "echo", "image": {"example": "red"}, "text": "what?", **fields}
    body = json.dumps({key: value for key, value in whole.items() if value is not ...})
    return post(server, body, connection)


def post(server: LiveServer, body: bytes | str, connection: HTTPConnection | None = None) -> Reply:
    kind = "application/json"
    return send(server, "POST", "/api/run", body, connection, Content_Type=kind)


def raw(server: LiveServer, data: bytes, *, ends: bool = False) -> bytes:
    """The reply to raw bytes, until the server closes; `ends` closes our side after sending."""
    with socket.create_connection(("127.0.0.1", server.server_port), REPLY_SECONDS) as connection:
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        reply = b""
        while part := connection.recv(65536):
            reply += part
        return reply


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def packed(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def upload(server: LiveServer, data: bytes, kind: str = "png", **fields: Any) -> Reply:
    return run(server, image={"data": data_url(data, kind)}, **fields)
