"""`eligo info`: what is installed, what it can run on, which models came along."""

import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import eligo
from eligo.cli.console import print_result
from eligo.pretrained.load import CARD, SHIPPED, shipped_models

_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "pydantic", "tyro", "numpy")
_FOR_DEVELOPERS = ("test", "dev")


def run(json: bool = False) -> None:
    """Show versions, devices, extras and shipped models.

    Args:
        json: Print one JSON document.
    """
    print_result(
        {
            "versions": _versions(),
            "devices": _devices(),
            "extras": _extras(),
            "models": list(_models()),
        },
        json,
    )


def _versions() -> dict[str, str | None]:
    own = {"eligo": eligo.__version__, "python": platform.python_version()}
    return own | {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    import torch

    cpu = {"device": "cpu", "name": platform.processor() or platform.machine()}
    devices = [{**cpu, "detail": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gigabytes = properties.total_memory / 2**30
        row = {"device": f"cuda:{index}", "name": properties.name}
        devices.append({**row, "detail": f"{gigabytes:.0f} GiB"})
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": "Apple GPU", "detail": ""})
    return devices


def _extras() -> list[dict[str, Any]]:
    """What eligo's own metadata calls optional, and whether it is here."""
    try:
        requirements = metadata.requires("eligo") or []
    except metadata.PackageNotFoundError:  # run from a bare checkout
        return []
    rows = []
    for requirement in requirements:
        found = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
        if found and found[2] not in _FOR_DEVELOPERS:
            version = _version(found[1])
            how = None if version else f"pip install 'eligo[{found[2]}]'"
            rows.append({"extra": found[2], "package": found[1], "version": version, "get it": how})
    return rows


def _models() -> Iterator[dict[str, Any]]:
    """Name, size and the first line of the card of each."""
    for name in shipped_models():
        folder = SHIPPED / name
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        about = (folder / CARD).read_text(encoding="utf-8").strip().splitlines()[0]
        yield {"model": name, "MB": round(size / 1e6, 1), "about": about.lstrip("# ")}
