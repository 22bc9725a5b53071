"""`eligo info`: what is installed, what it can run on, which models came along."""

import json as json_module
import os
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import eligo
from eligo.cli.console import print_result

_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "pydantic", "tyro", "numpy")
_FOR_DEVELOPERS = ("test", "dev")
MODELS = Path(eligo.__file__).parent / "scenes" / "models"


def run(json: bool = False) -> None:
    """Show versions, devices, extras and shipped models.

    Args:
        json: Print one JSON document instead of tables.
    """
    print_result(
        {
            "versions": _versions(),
            "devices": _devices(),
            "extras": _extras(),
            "models": list(_models(MODELS)),
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


def _models(root: Path) -> Iterator[dict[str, Any]]:
    for folder in sorted(path for path in root.glob("*") if path.is_dir()):
        if (folder / "config.json").exists() or (folder / "README.md").exists():
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            yield {"model": folder.name, "MB": round(size / 1e6, 1), "about": _about(folder)}


def _about(folder: Path) -> str:
    card, readme = folder / "card.json", folder / "README.md"
    if card.exists():
        return json_module.loads(card.read_text(encoding="utf-8")).get("description", "")
    if readme.exists():
        lines = readme.read_text(encoding="utf-8").splitlines()
        return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
    return ""
