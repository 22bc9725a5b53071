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


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Return date, hardware, command and versions for the head of a result file.

    Of paths outside the working folder the command has only the names: others have other folders.
    """
    import torch
    import transformers

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": _hardware(device),
        "command": shlex.join([*_program(), *map(_named, sys.argv[1:])]),
        "versions": {
            "eligo": eligo.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def _program() -> list[str]:
    """Return the words that start this program: a module of the benchmarks, or the command line."""
    name = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
    return ["python", "-m", name] if name.startswith("benchmarks.") else ["eligo"]


def _named(argument: str) -> str:
    flag, equals, value = (
        argument.partition("=") if argument.startswith("-") else ("", "", argument)
    )
    return flag + equals + (Path(value).name if Path(value).is_absolute() else value)


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
