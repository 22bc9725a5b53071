"""Prints the lowest versions that pyproject.toml allows, as constraints for pip.

Not torch: it is installed before all else, as the machine offers it.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
for requirement in [
    *project["dependencies"],
    *(one for extra in project["optional-dependencies"].values() for one in extra),
]:
    name = re.match(r"[\w-]+", requirement)[0]
    lowest = re.search(r">=([\w.]+)", requirement)
    if name in ("eligo", "torch"):
        continue
    if lowest is None:
        sys.exit(f"pyproject.toml: {requirement}: expected a lower bound, name>=version")
    print(f"{name}=={lowest[1]}")
