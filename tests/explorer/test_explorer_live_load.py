"""The live server as a process: start, many clients at once, shutdown by signal."""

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from explorer_live_cases import PAGE, Reply, data_url, packed, run, serving, tools, until
from PIL import Image

from eligo.cli.explorer import live as explore_live
from eligo.errors import InputError
from eligo.explorer.server import LiveServer
from limits import PROCESS_SECONDS, REPLY_SECONDS

CLIENTS, REQUESTS = 20, 40
SERVER = """
import sys
sys.path[:0] = {here!r}, {tests!r}
import explorer_live_cases
import eligo.cli.explorer
from eligo.cli.explorer.live import serve
eligo.cli.explorer.live_tools = lambda *_: explorer_live_cases.tools()
serve(port=0, device="cpu")
print("left in order")
"""


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def connections() -> int:
    """Number of server threads that serve a connection."""
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_many_clients_at_once():
    """Every client gets its own answers without errors; no thread or memory is leaked."""
    photograph = data_url(packed(Image.effect_noise((640, 480), 80).convert("RGB"), "JPEG"), "jpeg")
    kinds = (
        {"image": {"example": "red"}, "budget": 3},
        {"image": {"data": photograph}},
        {"tool": "deep", "image": {"example": "deep"}},
        {"tool": "blind", "image": ...},
    )

    def client(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=REPLY_SECONDS)
        for count in range(REQUESTS):
            text = f"client {number} asks {count}"
            reply = run(server, connection, text=text, **kinds[(number + count) % len(kinds)])
            assert reply.answers["text"] == text
        connection.close()

    others = connections()
    with serving() as server:
        with ThreadPoolExecutor(CLIENTS) as crowd:
            list(crowd.map(lambda number: run(server, text=str(number)), range(CLIENTS)))  # warm
            before = resident_mib()
            list(crowd.map(client, range(CLIENTS)))
        until(lambda: connections() <= others)
        assert server.queue.taken == 0
        assert resident_mib() - before < 64


@pytest.fixture
def process():
    here = Path(__file__).parent
    script = SERVER.format(here=str(here), tests=str(here.parent))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        yield started
        started.kill()


def test_start_request_and_interrupt(process):
    place = process.stdout.readline()
    assert place.startswith("eligo explorer: http://127.0.0.1:")
    connection = HTTPConnection(urlsplit(place.split()[-1]).netloc, timeout=REPLY_SECONDS)
    connection.request("GET", "/")
    page = connection.getresponse().read().decode()
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert [tool["name"] for tool in json.loads(data)["live"]["tools"]] == ["echo", "deep", "blind"]
    body = json.dumps({"tool": "echo", "image": {"example": "red"}, "text": "here?"})
    connection.request("POST", "/api/run", body, {"Content-Type": "application/json"})
    assert Reply(connection.getresponse()).answers["text"] == "here?"
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=PROCESS_SECONDS)
    assert process.returncode == 0
    assert out == "left in order\n"
    lines = ["loading torch", "drawing scenes", "to try, on cpu: echo, deep, blind", "first use"]
    assert sorted(lines, key=error.index) == lines
    assert "stopped" in error
    assert "Traceback" not in error


def test_sigterm_stops_the_server(process):
    process.stdout.readline()
    process.terminate()
    assert process.communicate(timeout=PROCESS_SECONDS)[0] == "left in order\n"
    assert process.returncode == 0


def test_server_without_tools_is_refused(monkeypatch):
    monkeypatch.setattr("eligo.cli.explorer.live_tools", lambda *_: [])
    with pytest.raises(InputError, match="nothing to try"):
        explore_live.serve(port=0, device="cpu")


def test_taken_port_is_refused(monkeypatch):
    monkeypatch.setattr("eligo.cli.explorer.live_tools", lambda *_: tools())
    taken = LiveServer(PAGE, tools())
    with pytest.raises(InputError, match=f"--port: {taken.server_port} is taken"):
        explore_live.serve(port=taken.server_port, device="cpu")
    taken.close()
