"""Helpers of the tests of patches can be imported here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "patches"))
