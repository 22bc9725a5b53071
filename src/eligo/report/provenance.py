"""The head of a result file: date, hardware, command and versions."""

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
    """Return date, hardware, command and versions for the head of a result file.

    `program` starts the command ("eligo", "python -m benchmarks.scenes.speed"); its arguments are
    added.
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
    """Return the machines of runs, from the provenance under `made`."""
    return sorted({run["made"]["hardware"].partition(", load")[0] for run in runs})
