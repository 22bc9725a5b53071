"""Helpers of the families' tests can be imported here."""

import sys
from pathlib import Path

for family in ("tokens", "patches"):
    sys.path.append(str(Path(__file__).parents[1] / family))
