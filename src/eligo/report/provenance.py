"""Where a number comes from: every result file says when, on what, and by which command."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import eligo


def provenance(program: str, device: str = "cpu") -> dict[str, Any]:
    """Date, hardware, command and versions, to stand at the head of a result file.

    `program` is how one starts it ("eligo", "python benchmarks/scenes/speed.py"); the rest of the command
    is read off the command line.
    """
    import torch
    import transformers

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": _hardware(device),
        "command": f"{program} {shlex.join(sys.argv[1:])}".strip(),
        "versions": {
            "eligo": eligo.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{model}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end"


def made_on(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The machines that runs were made on, by the provenance each keeps under `made`."""
    return sorted({run["made"]["hardware"].partition(", load")[0] for run in runs})
