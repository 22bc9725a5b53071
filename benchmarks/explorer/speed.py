"""Load test of `eligo explore --live`: many clients against a server in its own process.

    python -m benchmarks.explorer.speed           20 clients for 60 s, with the shipped models
    python -m benchmarks.explorer.speed --clients 4 --seconds 10

First one client alone sends new questions, then the same ones with other budgets, as a user would.
Then all clients send random requests: examples and uploads, questions, budgets, reloads. Everything
stays on loopback, and the server is stopped at the end. Writes
benchmarks/explorer/results/speed.json.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Annotated, Any
from urllib.parse import urlsplit

import tyro
from PIL import Image

from eligo.io.files import write_text
from eligo.report.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "speed.json"
SERVER = ["-m", "eligo", "explore", "--live", "--port", "0", "--device", "cpu"]
UPLOADS = 4
LONGEST = 300.0  # maximum seconds of a run


@dataclass
class Tally:
    """Replies by status and tool, with their times."""

    seconds: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def add(self, tool: str, status: str, seconds: float, worked: float | None) -> None:
        with self.lock:
            self.statuses[status] += 1
            self.tools[tool] += 1
            self.seconds.append(seconds)
            if worked is not None:
                self.worked.append(worked / 1000)

    @property
    def errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != "200")


def main(
    clients: Annotated[int, tyro.conf.arg(help="How many at once, 1 to 64.")] = 20,
    seconds: Annotated[float, tyro.conf.arg(help="For how long, at most 240.")] = 60.0,
    out: Annotated[Path, tyro.conf.arg(help="The file to write.")] = RESULTS,
) -> None:
    """Measure and record."""
    if not (1 <= clients <= 64 and 0 < seconds <= 240):
        raise SystemExit("expected 1 to 64 clients and up to 240 seconds")
    with subprocess.Popen(
        [sys.executable, *SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            results = _measure(server, clients, seconds)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                code = server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                raise
    results["exit code"] = code
    content = provenance() | results
    write_text(out, json.dumps(content, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def _measure(server: subprocess.Popen[str], clients: int, seconds: float) -> dict[str, Any]:
    assert server.stdout is not None
    url = re.search(r"http://\S+", server.stdout.readline())
    if url is None:
        raise SystemExit("the server did not start")
    netloc = urlsplit(url[0]).netloc
    page = _get(netloc, "/")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    tools = json.loads(data[1])["live"]["tools"]
    for tool in tools:  # loads every model
        _send(netloc, _example(tool, 0, None), Tally())
    alone = {tool["name"]: _alone(netloc, server.pid, tool) for tool in tools}
    before = _memory(server.pid)
    load = os.getloadavg()[0]
    tally, memory = _all_clients(netloc, server.pid, tools, clients, seconds)
    ordered = sorted(tally.seconds)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(ordered),
        "errors": tally.errors,
        "statuses": dict(tally.statuses),
        "by tool": dict(tally.tools),
        "requests/s": round(len(ordered) / seconds, 2),
        "latency s": {
            name: _quantile(ordered, share)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1))
        },
        "work s": {"p50": _quantile(sorted(tally.worked), 0.5)},
        "one client alone, s": alone,
        "resident MiB": {
            "before": before, "highest": max(memory), "after": memory[-1],
            "middle": memory[len(memory) // 2],
        },
        "load average before": round(load, 1),
    }  # fmt: skip


def _alone(netloc: str, pid: int, tool: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of new questions and of other budgets for them, as wall time and as
    processor time, which does not depend on the load of the machine."""
    tallies = {"new question": Tally(), "budget moved": Tally()}
    spent = dict.fromkeys(tallies, 0.0)
    for number in range(1, min(6, len(tool["examples"]))):
        shares = {"new question": (None,), "budget moved": (0.2, 0.5, 0.8)}
        for name, tally in tallies.items():
            for share in shares[name] if tool["budget"] or name == "new question" else ():
                before = _processor(pid)
                _send(netloc, _example(tool, number, share), tally)
                spent[name] += _processor(pid) - before
    summary = {}
    for name, tally in tallies.items():
        if ordered := sorted(tally.seconds):
            summary[f"{name}, p50"] = _quantile(ordered, 0.5)
            summary[f"{name}, max"] = _quantile(ordered, 1.0)
            summary[f"{name}, processor, mean"] = round(spent[name] / len(ordered), 3)
    return summary


def _all_clients(
    netloc: str, pid: int, tools: list[dict[str, Any]], clients: int, seconds: float
) -> tuple[Tally, list[float]]:
    tally, memory = Tally(), []
    until = time.monotonic() + min(seconds, LONGEST)
    uploads = [_photograph(number) for number in range(UPLOADS)]
    with ThreadPoolExecutor(clients) as pool:
        running = [
            pool.submit(_client, number, netloc, tools, uploads, until, tally)
            for number in range(clients)
        ]
        while not all(future.done() for future in running):
            memory.append(_memory(pid))
            time.sleep(0.5)
        for future in running:
            future.result()
    return tally, [*memory, _memory(pid)]


def _client(
    number: int,
    netloc: str,
    tools: list[dict[str, Any]],
    uploads: list[str],
    until: float,
    tally: Tally,
) -> None:
    draw = random.Random(number)
    connection = HTTPConnection(netloc, timeout=60)
    while time.monotonic() < until:
        tool = draw.choice(tools)
        share = draw.random() if tool["budget"] else None
        body = _example(tool, draw.randrange(len(tool["examples"])), share)
        if draw.random() < 0.3:
            body["image"] = {"data": draw.choice(uploads)}
        _send(netloc, body, tally, connection)
        if draw.random() < 0.05:
            _get(netloc, "/")
    connection.close()


def _example(tool: dict[str, Any], number: int, share: float | None) -> dict[str, Any]:
    """Return a request: an example of a tool, with the budget at a share of its scale."""
    example = tool["examples"][number]
    body = {"tool": tool["name"], "text": example["text"], "image": {"example": example["id"]}}
    if tool["budget"] and share is not None:
        budget = tool["budget"]
        steps = round(share * (budget["max"] - budget["min"]) / budget["step"])
        body["budget"] = budget["min"] + budget["step"] * min(
            steps, int((budget["max"] - budget["min"]) / budget["step"])
        )
    return body


def _send(
    netloc: str, body: dict[str, Any], tally: Tally, connection: HTTPConnection | None = None
) -> None:
    own = connection or HTTPConnection(netloc, timeout=60)
    began, worked = time.perf_counter(), None
    try:
        own.request("POST", "/api/run", json.dumps(body), {"Content-Type": "application/json"})
        reply = own.getresponse()
        content = reply.read()
        status = str(reply.status)
        if status == "200":
            worked = json.loads(content)["milliseconds"]
    except OSError as error:
        status = type(error).__name__
        own.close()
    tally.add(body["tool"], status, time.perf_counter() - began, worked)
    if connection is None:
        own.close()


def _get(netloc: str, path: str) -> str:
    connection = HTTPConnection(netloc, timeout=60)
    connection.request("GET", path)
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    if reply.status != 200:
        raise SystemExit(f"{path}: status {reply.status}")
    return content


def _photograph(seed: int) -> str:
    """Return noise that compresses as badly as a photograph, as a browser would send it."""
    noise = Image.effect_noise((96 + seed, 72), 90).resize((1024, 768)).convert("RGB")
    buffer = BytesIO()
    noise.save(buffer, "JPEG", quality=92)
    return f"data:image/jpeg;base64,{b64encode(buffer.getvalue()).decode()}"


def _memory(pid: int) -> float:
    """Return the resident MiB of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def _processor(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quantile(ordered: list[float], share: float) -> float:
    if not ordered:
        return float("nan")
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


if __name__ == "__main__":
    tyro.cli(main)
