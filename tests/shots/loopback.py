"""A small OpenAI-compatible server on loopback, which also fails, stalls and lies."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ALL = ("prompt_logprobs", "echo", "chat")


def pieces(text: str) -> list[str]:
    """Tokens: words with the space before them."""
    return re.findall(r"\s*\S+", text)


def logprob(before: str, token: str) -> float:
    """The log-probability of a token after a text, as a formula."""
    return -((7 * sum(map(ord, before)) + 3 * sum(map(ord, token))) % 997) / 400


def scored(prompt: str, answer: str) -> float:
    """The log-probability of an answer after a prompt."""
    total, text = 0.0, prompt
    for token in pieces(f" {answer}"):
        total += logprob(text, token)
        text += token
    return total


class Server:
    """Its answers, its faults in turn, and all requests that it got."""

    def __init__(self, features: tuple[str, ...] = ALL, said: str = "at place 1") -> None:
        self.features, self.said = features, said
        self.faults: list[str] = []
        self.lie: str | None = None  # of every answer
        self.key: str | None = None
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        self.lock, self.over = threading.Lock(), threading.Event()
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["prompt"]
        choice: dict[str, Any] = {"text": f" {self.said}\n", "index": 0}
        tokens = pieces(text)
        values = [None, *(logprob("".join(tokens[:n]), tokens[n]) for n in range(1, len(tokens)))]
        if self.lie == "nan":
            values[-1] = float("nan")
        elif self.lie == "positive":
            values[-1] = 0.7
        elif self.lie == "text":
            tokens[-1] = " other"
        elif self.lie == "short":
            tokens, values = tokens[-1:], values[-1:]
        elif self.lie == "words":
            values = [str(value) for value in values]
        if "prompt_logprobs" in body and "prompt_logprobs" in self.features:
            choice["prompt_logprobs"] = [None] + [
                {str(100 + n): {"logprob": values[n], "rank": 1, "decoded_token": tokens[n]}}
                for n in range(1, len(tokens))
            ]
        if body.get("echo") and "echo" in self.features:
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": values}
        return {"choices": [] if self.lie == "empty" else [choice]}


class _Handler(BaseHTTPRequestHandler):
    server: Any
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        model: Server = self.server.model
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with model.lock:
            fault = model.faults.pop(0) if model.faults else ""
            model.requests.append((self.path, body, self.headers.get("Authorization")))
        if fault in ("close", "stall"):
            if fault == "stall":
                model.over.wait()
            self.close_connection = True
        elif fault == "drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not model.over.wait(0.02):
                self.wfile.write(b" ")
        elif fault == "garbage":
            self._send(200, b"<html>busy</html>")
        elif fault:
            self._send(int(fault), b'{"error": "try again, Bearer secret-key"}')
        elif model.key is not None and self.headers.get("Authorization") != f"Bearer {model.key}":
            self._send(401, b'{"error": "who are you?"}')
        elif self.path == "/v1/completions":
            self._send(200, json.dumps(model.completion(body)).encode())
        elif self.path == "/v1/chat/completions" and "chat" in model.features:
            message = {"role": "assistant", "content": model.said}
            self._send(200, json.dumps({"choices": [{"message": message}]}).encode())
        else:
            self._send(404, b'{"error": "no such path"}')

    def _send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status == 429:
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(text)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:  # clients that went away
        pass


@contextmanager
def served(features: tuple[str, ...] = ALL, **options: Any) -> Iterator[Server]:
    """Run a server in a thread."""
    model = Server(features, **options)
    http = _Quiet(("127.0.0.1", 0), _Handler)
    http.model = model  # pyright: ignore[reportAttributeAccessIssue]
    model.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.over.set()
        http.shutdown()
        http.server_close()
        thread.join()
