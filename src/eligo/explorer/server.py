"""The live explorer's HTTP server: `/`, `/health`, and `POST /api/run`.

Loopback alone does not protect: any page in the user's browser can send requests to it. So `Host`
must name this machine (against DNS rebinding), a `POST` must come from our page and contain JSON,
and no other origin may read. Time, bytes, connections and waiting requests are limited.
"""

import errno
import io
import json
import logging
import re
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import BoundedSemaphore
from time import monotonic, perf_counter
from types import MappingProxyType
from typing import Any

from eligo import __version__
from eligo.errors import EligoError, InputError
from eligo.explorer.inline import inline
from eligo.explorer.request import MAX_BYTES, CheckedRequest, read
from eligo.explorer.tools import LiveTool, RefusedError
from eligo.explorer.work_queue import WorkQueue

HOST = "127.0.0.1"
RUN = "/api/run"
_OURS = re.compile(r"(localhost|127\.0\.0\.1)(:\d{1,5})?", re.IGNORECASE)
_METHODS = {"/": ("GET", "HEAD"), "/health": ("GET", "HEAD"), RUN: ("POST",)}
_SECONDS = 15.0  # to send a whole request, to take a whole reply, or to stay idle
_CONNECTIONS = 64
_DRAIN_SECONDS = 2.0  # to read what a client sends after it was refused
_ICON = "/favicon.ico"  # browsers always request it
_JSON, _HTML = "application/json", "text/html; charset=utf-8"
_HEADERS = {
    # The page contains a stricter policy with the hash of its script. This one adds what only a
    # header can set, and covers all other replies.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
logger = logging.getLogger("eligo.explorer")


class LiveServer(ThreadingHTTPServer):
    """Serves a page and its tools on loopback until `close`.

    >>> server = LiveServer(page, tools, port=0)  # doctest: +SKIP
    >>> server.url, server.serve_forever()  # doctest: +SKIP
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        page: str,
        tools: Sequence[LiveTool],
        *,
        port: int = 0,
        queue: WorkQueue | None = None,
        seconds: float = _SECONDS,
        connections: int = _CONNECTIONS,
    ) -> None:
        """`port` 0 takes a free one; `seconds` is the time to send a request or receive a reply."""
        self.page = page.encode()
        self.tools = {tool.name: tool for tool in tools}
        self.queue, self.seconds = queue or WorkQueue(), seconds
        self._free = BoundedSemaphore(connections)
        if not 0 <= port <= 65535:
            raise InputError(f"--port: got {port}, expected 0 (any that is free) to 65535")
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error})"
            raise InputError(
                f"--port: {port} {why}; choose another one, or 0 for any that is free"
            ) from None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind without a reverse DNS lookup."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    def close(self) -> None:
        """Stop listening, finish running requests, and stop the worker."""
        self.server_close()
        self.queue.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for the connection, or reply 503 if there are too many."""
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: 1\r\n\r\n")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was started, which would release it
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log an error; clients that disconnect are not errors."""
        known = isinstance(sys.exception(), OSError)
        logger.log(logging.DEBUG if known else logging.ERROR, "a connection failed", exc_info=True)


class _Deadline(io.RawIOBase):
    """Reads from a socket until a deadline, however slowly data arrives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError("the request did not end in time")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # reply with a status to what is not HTTP
    disable_nagle_algorithm = True  # it would delay the body of a reply

    # ------------------------------------------------------------ time

    def setup(self) -> None:
        super().setup()
        self._incoming = _Deadline(self.connection)
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        self._allow(self.server.seconds)
        self._is_read = False
        super().handle_one_request()

    def parse_request(self) -> bool:
        self._allow(self.server.seconds)  # again: the connection may have been idle
        return super().parse_request()

    def _allow(self, seconds: float) -> None:
        self._incoming.until = monotonic() + seconds

    # ------------------------------------------------------------ routing

    def _answer(self) -> None:
        has_body = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        self._is_read = self.command != "POST" and not has_body
        try:
            self._check_host()
            path = self.path.partition("?")[0]
            if path == _ICON and self.command == "GET":
                self._reply(HTTPStatus.NO_CONTENT)
                return
            self._check_method(path)
            if path == RUN:
                self._run()
            elif path == "/":
                self._reply(HTTPStatus.OK, self.server.page, _HTML)
            else:
                self._reply(HTTPStatus.OK, _dumps(self._health()))
        except RefusedError as refused:
            self._refuse(refused.status, str(refused))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _check_host(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _OURS.fullmatch(hosts[0].strip()):
            got = ", ".join(hosts)[:60] or "none"
            raise RefusedError(403, f"Host: got {got}, expected localhost or {HOST}; open {HOST}")

    def _check_method(self, path: str) -> None:
        allowed = _METHODS.get(path)
        if allowed is None:
            raise RefusedError(404, f"got {path[:60]}, expected one of {', '.join(_METHODS)}")
        if self.command not in allowed:
            raise RefusedError(405, f"{path}: got {self.command}, expected {' or '.join(allowed)}")

    def _health(self) -> dict[str, Any]:
        tools, queue = list(self.server.tools), self.server.queue
        return {"status": "ok", "version": __version__, "tools": tools, "busy": queue.taken}

    # ------------------------------------------------------------ work

    def _run(self) -> None:
        self._check_sender()
        request = read(self._body(self._length()), self.server.tools)
        with self.server.queue.slot():
            content = self.server.queue.work(lambda: self._work(request))
            self._reply(HTTPStatus.OK, content)

    def _work(self, request: CheckedRequest) -> bytes:
        """Run the tool in the worker thread; refused if the client has disconnected."""
        if self._has_left():
            raise RefusedError(503, "the client closed the connection")
        began = perf_counter()
        try:
            record = inline(request.tool.run(request.open()))
            milliseconds = round(1000 * (perf_counter() - began), 1)
            return _dumps({"record": record, "milliseconds": milliseconds})
        except RefusedError:
            raise
        except EligoError as error:
            raise RefusedError(400 if isinstance(error, InputError) else 500, str(error)) from error
        except Exception as error:
            logger.exception("the tool %s failed", request.tool.name)
            raise RefusedError(
                500, f"the tool {request.tool.name} failed; see the terminal of the server"
            ) from error

    def _has_left(self) -> bool:
        """Return whether the client disconnected (a moved slider drops its earlier request)."""
        try:
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _check_sender(self) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{self.headers['Host']}".lower():
            raise RefusedError(403, f"Origin: got {origin[:60]}, expected this server's own page")
        kind = self.headers.get_content_type() if "Content-Type" in self.headers else "none"
        if kind != _JSON:
            raise RefusedError(415, f"Content-Type: got {kind[:60]}, expected {_JSON}")

    def _length(self) -> int:
        given = self.headers.get_all("Content-Length") or []
        if not given or "Transfer-Encoding" in self.headers:
            raise RefusedError(411, "got a body of unknown length, expected Content-Length")
        if len(given) > 1 or not re.fullmatch(r"[0-9]{1,18}", given[0].strip()):
            raise RefusedError(
                400, f"Content-Length: got {', '.join(given)[:60]}, expected a number"
            )
        if (length := int(given[0])) > MAX_BYTES:
            raise RefusedError(
                413, f"got {length:,} bytes, expected at most {MAX_BYTES:,}; scale the image down"
            )
        return length

    def _body(self, length: int) -> bytes:
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise RefusedError(408, f"the body of {length} bytes did not come in time") from None
        if len(body) < length:
            raise RefusedError(400, f"got {len(body)} bytes of a body of {length}")
        self._is_read = True
        return body

    # ------------------------------------------------------------ replies

    def _refuse(self, status: int, message: str) -> None:
        more = {}
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            more["Allow"] = ", ".join(_METHODS[self.path.partition("?")[0]])
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            more["Retry-After"] = "1"
        self._reply(status, _dumps({"error": message}), _JSON, more)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reply to malformed requests and unknown methods."""
        del explain
        self._refuse(code, message or HTTPStatus(code).phrase)

    def _reply(
        self,
        status: int,
        content: bytes = b"",
        kind: str = _JSON,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if not self._is_read:  # the rest would be read as the next request
            self.close_connection = True
        self.connection.settimeout(self.server.seconds)
        self.send_response(status)
        more = {"Content-Type": kind, "Content-Length": str(len(content))} if content else {}
        closing = {"Connection": "close"} if self.close_connection else {}
        for name, value in {**_HEADERS, **more, **headers, **closing}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        if not self._is_read:
            self._drain_request()

    def _drain_request(self) -> None:
        """Read the rest of a refused request: closing at once could lose the reply."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self._allow(_DRAIN_SECONDS)
            while self.rfile.read1(1 << 16):
                pass

    def version_string(self) -> str:
        return f"eligo/{__version__}"

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


def _dumps(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
