"""Makes the tiny models of the other tests importable here."""

import sys
from pathlib import Path

for family in ("tokens", "shots", "pixels"):
    sys.path.append(str(Path(__file__).parents[1] / family))
