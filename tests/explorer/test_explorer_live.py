"""The live server: what it serves, to whom, and which requests it refuses."""

import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from threading import Timer

import pytest
from explorer_live_cases import (
    DEPTH,
    PAGE,
    RED,
    WORKED,
    data_url,
    holding,
    packed,
    post,
    raw,
    run,
    send,
    serving,
    tools,
    until,
    upload,
)

from eligo.errors import InputError
from eligo.explorer.export import safe_json
from eligo.explorer.request import MAX_BYTES
from eligo.explorer.server import LiveServer
from eligo.explorer.tools import LiveBudget, describe
from eligo.explorer.work_queue import WorkQueue
from limits import REPLY_SECONDS


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


# ------------------------------------------------------------------ pages and answers


def test_page_and_health(server):
    page = send(server, "GET", "/?from=somewhere")
    assert (page.status, page.body.decode()) == (200, PAGE)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    health = send(server, "GET", "/health")
    assert health.json["status"] == "ok"
    assert health.json["tools"] == ["echo", "deep", "blind"]
    head = send(server, "HEAD", "/")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(PAGE))
    assert send(server, "GET", "/favicon.ico").status == 204
    for reply in (page, health, send(server, "GET", "/nowhere"), run(server)):
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert not [name for name in reply.headers if name.lower().startswith("access-control")]


def test_tools_are_described_to_the_page():
    described = json.loads(safe_json(describe(tools())))["tools"]
    assert [tool["name"] for tool in described] == ["echo", "deep", "blind"]
    echo = described[0]
    assert echo["text"] == {"label": "question", "placeholder": "ask", "default": "what?"}
    assert echo["budget"] == {
        "label": "kept", "min": 1, "max": 5, "step": 2, "default": 3, "unit": "cells"
    }  # fmt: skip
    assert (echo["image"], echo["depth"], described[1]["depth"]) == (True, False, True)
    assert described[1]["budget"] is None
    assert [tool["choices"] for tool in described] == [
        [], [{"name": "colour", "label": "Colour", "options": ["red", "blue"]}], []
    ]  # fmt: skip
    example = echo["examples"][0]
    assert example["thumbnail"].startswith("data:image/jpeg;base64,")
    assert {key: example[key] for key in ("id", "title", "text")} == {
        "id": "red", "title": "a red one", "text": "what colour?"
    }  # fmt: skip


def test_run_returns_a_record(server):
    reply = run(server, text="  which \n one? ", budget=5)
    assert set(reply.json) == {"record", "milliseconds"}
    assert reply.json["milliseconds"] > 0
    assert reply.json["record"]["stages"][0]["chosen"][0]["kept"] == [5, 4, 3, 2, 1]
    assert reply.json["record"]["pictures"]["image"].startswith("data:image/")
    assert reply.answers["text"] == "which one?"
    assert reply.answers["image"] == "RGB 32 24"
    assert len(run(server, budget=...).json["record"]["stages"][0]["chosen"][0]["kept"]) == 3
    assert run(server, text=...).answers["text"] == "what?"
    assert "depth" not in run(server, image={"example": "deep"}).answers
    deep = run(server, tool="deep", image={"example": "deep"})
    assert deep.answers["depth"] == "I;16 (32, 24) 1500"
    assert run(server, tool="blind", image=...).answers == {"text": "what?"}


def test_one_thread_does_all_work(server):
    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(lambda _: run(server), range(16)))
    assert len({reply.answers["thread"] for reply in replies}) == 1


def test_connection_stays_open(server):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=REPLY_SECONDS)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        assert run(server, connection).status == 200
        assert run(server, connection, text=5).status == 400  # the body was read: no need to close
        assert send(server, "GET", "/health", connection=connection).status == 200
    assert connection.sock is first
    connection.close()


# ------------------------------------------------------------------ hosts and origins


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9999", "localhost:65535"]
)
def test_local_host_names_are_accepted(server, host):
    assert send(server, "GET", "/", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil", "127.0.0.1:80:80", "a@localhost",
     "localhost:", "", "0.0.0.0", "127.0.0.1,evil", "[::1]"],
)  # fmt: skip
def test_foreign_host_names_are_refused(server, host):
    for method, path in (("GET", "/"), ("GET", "/health"), ("POST", "/api/run")):
        reply = send(server, method, path, Host=host)
        assert reply.status == 403
        assert "expected localhost" in reply.error


def test_missing_or_repeated_host_is_refused(server):
    for hosts in (b"", b"Host: localhost\r\nHost: evil\r\n", b"host: evil\r\n"):
        head = b"GET / HTTP/1.1\r\nConnection: close\r\n" + hosts
        assert raw(server, head + b"\r\n").startswith(b"HTTP/1.1 403 "), hosts


def test_posts_from_other_origins_are_refused(server):
    body = json.dumps({"tool": "echo", "image": {"example": "red"}})
    kind, here = "application/json", f"127.0.0.1:{server.server_port}"

    def status(**headers: str) -> int:
        headers = {"Content_Type": kind, **headers}
        return send(server, "POST", "/api/run", body, **headers).status

    assert status() == 200
    assert status(Origin=f"http://{here}") == 200
    assert status(Origin="http://localhost:7", Host="localhost:7") == 200  # through a tunnel
    for origin in ("http://evil.example", "null", f"https://{here}", "http://127.0.0.1:1", ""):
        assert status(Origin=origin) == 403, origin
    # Content types that a cross-origin form can send without a preflight request.
    for foreign in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert status(Content_Type=foreign) == 415
    assert send(server, "OPTIONS", "/api/run", Origin="http://evil.example").status == 405


# ------------------------------------------------------------------ refused requests


def test_unknown_paths_and_methods_are_refused(server):
    for path in ("/index.html", "/../../etc/passwd", "/%2e%2e/", "/api", "/api/run/", "*", "//x"):
        assert send(server, "GET", path).status == 404, path
    for method, path, allowed in (
        ("POST", "/", "GET, HEAD"), ("DELETE", "/health", "GET, HEAD"), ("GET", "/api/run", "POST"),
        ("PUT", "/api/run", "POST"),
    ):  # fmt: skip
        reply = send(server, method, path)
        assert (reply.status, reply.headers["Allow"]) == (405, allowed)
        assert "expected" in reply.error
    assert send(server, "BREW", "/").status == 501


def test_invalid_content_lengths_are_refused(server):
    head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert b" 411 " in raw(server, head + b"\r\n")
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert b" 411 " in raw(server, head + chunked)
    assert b" 411 " in raw(server, head + b"Content-Length: 2\r\n" + chunked)
    for length in (b"-1", b"two", b"1e3", b"", b"99999999999999999999", "٣".encode()):
        assert b" 400 " in raw(server, head + b"Content-Length: " + length + b"\r\n\r\n"), length
    both = b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
    assert b" 400 " in raw(server, head + both)
    early = raw(server, head + b"Content-Length: 9\r\n\r\n{}", ends=True)
    assert b"got 2 bytes of a body of 9" in early


def test_large_body_is_refused_before_it_is_read(server):
    reply = post(server, b" " * (MAX_BYTES + 1))  # a client that sends all before it reads
    assert reply.status == 413
    assert f"at most {MAX_BYTES:,}" in reply.error
    head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), REPLY_SECONDS) as connection:
        connection.sendall(head + b"Content-Length: 1000000000\r\n\r\n")
        assert b" 413 " in connection.recv(4096)
    assert post(server, b" " * MAX_BYTES).status == 400  # read, but not JSON


def test_body_of_a_get_is_not_a_second_request(server):
    smuggled = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    reply = raw(server, head + smuggled)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close" in reply


def test_expect_100_continue(server):
    body = json.dumps({"tool": "echo", "image": {"example": "red"}})
    reply = send(
        server, "POST", "/api/run", body, Content_Type="application/json", Expect="100-continue"
    )
    assert reply.status == 200


def test_malformed_requests_are_refused(server):
    assert b" 400 " in raw(server, b"hello\r\n\r\n")
    assert b" 414 " in raw(server, b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n")
    many = b"".join(b"X-%d: y\r\n" % number for number in range(200))
    assert b" 431 " in raw(server, b"GET / HTTP/1.1\r\n" + many + b"\r\n")
    assert b" 505 " in raw(server, b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n")
    assert b" 403 " in raw(server, b"GET /\r\n\r\n")  # HTTP/0.9
    for data in (b"hello\r\n\r\n", b"GET / HTTP/3.0\r\n\r\n"):
        body = raw(server, data).partition(b"\r\n\r\n")[2]
        assert set(json.loads(body)) == {"error"}


def test_errors_of_a_tool(server, caplog):
    assert run(server, text="wrong").status == 400
    assert run(server, text="wrong").error == "text: got wrong, expected right"
    foreseen = run(server, text="foreseen")
    assert (foreseen.status, foreseen.error) == (500, "the model is not well")
    with caplog.at_level(logging.ERROR, "eligo.explorer"):
        bug = run(server, text="bug")
    assert bug.status == 500
    assert "secret" not in bug.error  # logged, never sent to the client
    assert "secret of the house" in caplog.text
    assert run(server).status == 200


# ------------------------------------------------------------------ overload


def test_full_queue_is_busy():
    with serving(queue=WorkQueue(places=2)) as server, ThreadPoolExecutor(2) as clients:
        with holding():
            taken = [clients.submit(run, server, text="hold") for _ in range(2)]
            until(lambda: server.queue.taken == 2)
            for _ in range(4):
                busy = run(server)
                assert busy.status == 503
                assert busy.headers["Retry-After"] == "1"
                assert "try again" in busy.error
        assert [reply.result().status for reply in taken] == [200, 200]
        until(lambda: server.queue.taken == 0)  # a slot is free once its reply is sent
        assert run(server).status == 200


def test_slow_request_times_out():
    with serving(queue=WorkQueue(seconds=0.2)) as server:
        with holding():
            slow = run(server, text="hold")
            assert slow.status == 503
            assert "within 0.2 s" in slow.error
        until(lambda: run(server).status == 200)


def test_requests_of_disconnected_clients_are_skipped():
    body = json.dumps({"tool": "echo", "image": {"example": "red"}, "text": "tell"}).encode()
    head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving() as server, ThreadPoolExecutor(1) as clients:
        WORKED.clear()
        with holding():
            first = clients.submit(run, server, text="hold")
            until(lambda: server.queue.taken == 1)
            for count in range(3):
                with socket.create_connection(
                    ("127.0.0.1", server.server_port), REPLY_SECONDS
                ) as connection:
                    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                    until(lambda count=count: server.queue.taken == count + 2)
        assert first.result().status == 200
        assert run(server, text="tell me").status == 200  # queued after the three
        assert WORKED == ["tell me"]


def is_served(server: LiveServer) -> bool:
    with suppress(OSError, HTTPException):
        return run(server).status == 200
    return False


def test_number_of_connections_is_limited():
    with serving(connections=3) as server:
        idle = [
            socket.create_connection(("127.0.0.1", server.server_port), REPLY_SECONDS)
            for _ in range(3)
        ]
        assert b" 503 " in raw(server, b"")
        for connection in idle:
            connection.close()
        until(lambda: is_served(server))


def test_slow_senders_are_cut_off():
    with serving(seconds=0.5) as server:
        head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

        def dripping(start: bytes) -> tuple[float, bytes]:
            """Seconds until the server cuts off a byte every 0.1 s, and its reply."""
            began = time.monotonic()  # before the timeout of the server starts
            connection = socket.create_connection(("127.0.0.1", server.server_port), REPLY_SECONDS)
            connection.sendall(start)
            connection.settimeout(0.1)
            with connection:
                while time.monotonic() - began < REPLY_SECONDS:
                    try:
                        return time.monotonic() - began, connection.recv(4096)
                    except TimeoutError:
                        with suppress(OSError):
                            connection.sendall(b"a")
                    except ConnectionResetError:
                        return time.monotonic() - began, b""
            raise AssertionError("it still listens")

        for start in (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: local"):
            seconds, reply = dripping(start)
            assert (0.3 < seconds < REPLY_SECONDS, reply) == (True, b"")
        seconds, reply = dripping(head + b"Content-Length: 1000\r\n\r\n{")
        assert seconds < REPLY_SECONDS
        assert b" 408 " in reply
        until(lambda: is_served(server))  # on a busy machine a request may take over 0.5 s too


# ------------------------------------------------------------------ start and shutdown


def test_taken_and_invalid_ports_are_refused():
    with serving() as server:
        assert server.url == f"http://127.0.0.1:{server.server_port}/"
        assert server.server_address[0] == "127.0.0.1"
        with pytest.raises(InputError, match=rf"--port: {server.server_port} is taken; choose an"):
            LiveServer(PAGE, tools(), port=server.server_port)
    for port in (-1, 65536):
        with pytest.raises(InputError, match=f"--port: got {port}"):
            LiveServer(PAGE, tools(), port=port)


def test_shutdown_waits_for_the_pending_request(monkeypatch):
    monkeypatch.setattr(WorkQueue.close, "__defaults__", (REPLY_SECONDS,))  # timeout in seconds
    with ThreadPoolExecutor(1) as clients:
        with serving() as server, holding() as go:
            pending = clients.submit(run, server, text="hold")
            until(lambda: server.queue.taken == 1)
            Timer(0.3, go.set).start()
            server.shutdown()
            server.close()  # waits for the pending request
            assert go.is_set()
        assert server.queue.taken == 0  # the process may end now
        assert pending.result().answers["text"] == "hold"
        with pytest.raises(ConnectionRefusedError):
            run(server)


def test_invalid_budget_range_is_refused():
    for scale in ((5, 1, 1, 3), (1, 5, 0, 3), (1, 5, 1, 9), (1, float("nan"), 1, 1)):
        with pytest.raises(InputError, match="min <= default <= max"):
            LiveBudget("kept", *scale)


def test_uploaded_depth_reaches_the_tool(server):
    depth = {"data": data_url(packed(DEPTH))}
    reply = upload(server, packed(RED), tool="deep", depth=depth)
    assert reply.answers["depth"] == "I;16 (32, 24) 1500"
