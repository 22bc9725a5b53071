"""`eligo info`: versions, devices, extras and shipped models."""

import os
import platform
import re
from importlib import metadata
from typing import Any

import eligo
from eligo.cli.console import print_result
from eligo.pretrained.load import CARD, SHIPPED, shipped_models

_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "pydantic", "tyro", "numpy")
_DEVELOPER_EXTRAS = ("test", "dev")


def run(json: bool = False) -> None:
    """Show versions, devices, extras and shipped models.

    Args:
        json: Print one JSON document.
    """
    versions = {"eligo": eligo.__version__, "python": platform.python_version()}
    versions |= {package: _version(package) for package in _PACKAGES}
    info = {"versions": versions, "devices": _devices(), "extras": _extras(), "models": _models()}
    print_result(info, json)


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
    """Optional packages in eligo's metadata, and whether they are installed."""
    try:
        requirements = metadata.requires("eligo") or []
    except metadata.PackageNotFoundError:  # not installed
        return []
    rows = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", requirement)
        if match and match[2] not in _DEVELOPER_EXTRAS:
            version = _version(match[1])
            how = None if version else f"pip install 'eligo[{match[2]}]'"
            rows.append({"extra": match[2], "package": match[1], "version": version, "get it": how})
    return rows


def _models() -> list[dict[str, Any]]:
    """Name, size and first line of the card of each shipped model."""
    rows = []
    for name in shipped_models():
        folder = SHIPPED / name
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        about = (folder / CARD).read_text(encoding="utf-8").strip().splitlines()[0]
        rows.append({"model": name, "MB": round(size / 1e6, 1), "about": about.lstrip("# ")})
    return rows
