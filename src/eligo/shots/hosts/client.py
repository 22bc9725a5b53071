"""A client of an OpenAI-compatible server: bounded times and sizes, retries, a rate limit.

The key comes from the environment (ELIGO_API_KEY, else OPENAI_API_KEY) and is sent to this server
only: redirects are not followed. It is never written to a file, a message or a log.
"""

import http.client
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from eligo.errors import EligoError, InputError

KEYS = ("ELIGO_API_KEY", "OPENAI_API_KEY")
_MAX_BYTES = 64 << 20
_MAX_WAIT = 60.0  # seconds between two tries
_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}


class ServerDownError(EligoError):
    """The server did not answer, or only with errors that may pass; the run stops and can go on."""


class AnswerError(EligoError):
    """The server's answer is not what the protocol says."""


class Unsupported(AnswerError):  # noqa: N818
    """The server does not know this path or parameter."""


class Client:
    """Posts JSON: `Client("http://localhost:8000/v1").post("completions", {...})`."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        requests_per_minute: float | None = None,
        sleep: Callable[[float], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout`: seconds that a request may take in all; `sleep` and `clock`: for tests."""
        self.url, self.timeout, self.retries = check_url(url), timeout, retries
        self._parts = urlsplit(self.url)
        self._key = next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
        self._gap = 0.0 if requests_per_minute is None else 60.0 / requests_per_minute
        self._stopped, self._lock, self._next = threading.Event(), threading.Lock(), -math.inf
        self._sleep, self._clock = sleep or self._stopped.wait, clock

    def stop(self) -> None:
        """End waiting requests soon; for other threads."""
        self._stopped.set()

    def post(
        self,
        path: str,
        body: dict[str, Any],
        check: Callable[[Any], Any],
        retries: int | None = None,
    ) -> Any:
        """Return `check(answer)`; try again (`retries` times) after errors that may pass.

        `check` reads the parsed answer, and raises a KeyError, TypeError, ValueError, IndexError or
        AnswerError if it is not what it should be.
        """
        error, wait = "", 1.0
        tries = 1 + (self.retries if retries is None else retries)
        for number in range(tries):
            if self._stopped.is_set():
                raise ServerDownError(f"{self.url}: stopped")
            if number:
                self._sleep(min(wait, _MAX_WAIT))
                wait *= 2
            self._wait_for_turn()
            try:
                status, after, text = self._send(path, json.dumps(body).encode())
            except (OSError, http.client.HTTPException) as problem:
                error = f"no answer ({str(problem) or type(problem).__name__})"
                continue
            if status in _AGAIN:
                error, wait = self._says(status, text), max(wait, after)
                continue
            self._refuse(path, status, text)
            try:
                answer = json.loads(text)
            except (ValueError, RecursionError):
                error = f"no JSON ({self._says(status, text)})"
                continue
            return self._read(path, answer, check)
        raise ServerDownError(self._hidden(f"{self.url}: {error}; tried {tries} times"))

    def _read(self, path: str, answer: Any, check: Callable[[Any], Any]) -> Any:
        try:
            return check(answer)
        except Unsupported:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, AnswerError) as error:
            why = self._hidden(str(error) if isinstance(error, AnswerError) else repr(error))
            raise AnswerError(
                f"{self.url}/{path}: cannot use the server's answer ({why:.200})"
            ) from None

    def _refuse(self, path: str, status: int, text: bytes) -> None:
        if status == 200:
            return
        says = self._says(status, text)
        if status in (401, 403):
            have = "is not accepted" if self._key else "is missing"
            raise InputError(f"{self.url}: the key {have} ({says}); set {' or '.join(KEYS)}")
        if status in (400, 404, 405, 422, 501):
            raise Unsupported(f"{self.url}/{path}: {says}")
        raise InputError(f"{self.url}/{path}: {says}, expected 200; is it the address of the API?")

    def _send(self, path: str, body: bytes) -> tuple[int, float, bytes]:
        """Return status, Retry-After and text; no part takes longer than the whole may."""
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=self.timeout)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        late = threading.Event()

        def cut() -> None:  # also where a server sends one byte at a time
            late.set()
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout, cut)
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", f"{self._parts.path}/{path}", body, headers)
            answer = connection.getresponse()
            text = answer.read(_MAX_BYTES + 1)
            after = answer.getheader("Retry-After", "")
        except (OSError, http.client.HTTPException, AttributeError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise TimeoutError(f"it took longer than {self.timeout:g} seconds") from None
            raise OSError(str(error) or type(error).__name__) from error
        finally:
            timer.cancel()
            connection.close()
        if late.is_set():
            raise TimeoutError(f"it took longer than {self.timeout:g} seconds")
        if len(text) > _MAX_BYTES:
            raise AnswerError(f"{self.url}/{path}: the answer has more than {_MAX_BYTES:,} bytes")
        seconds = float(after) if after.isdigit() and len(after) < 6 else 0.0
        return answer.status, seconds, text

    def _wait_for_turn(self) -> None:
        """Wait until the rate limit allows a request."""
        if not self._gap:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._gap
        if start > now:
            self._sleep(start - now)

    def _says(self, status: int, text: bytes) -> str:
        shown = " ".join(text[:2000].decode(errors="replace").split())
        return f"status {status}: {self._hidden(shown)[:200]!r}"

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def check_url(url: str) -> str:
    """Return an address without its last slash; one that holds a key, or none at all, is refused.

    >>> check_url("http://localhost:8000/v1/")
    'http://localhost:8000/v1'
    """
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_http = False
        parts = urlsplit("")
    if "@" in url or parts.query or parts.fragment:
        raise InputError(
            "host.url: holds more than an address; expected one such as http://localhost:8000/v1 "
            f"(a key goes into the environment: {' or '.join(KEYS)})"
        )
    if not is_http or not url.isprintable() or " " in url:
        raise InputError(
            f"host.url: got {url!r:.80}, expected an address such as http://localhost:8000/v1"
        )
    return url.rstrip("/")
