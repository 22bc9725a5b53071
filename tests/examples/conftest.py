"""The tiny models of the families' own tests serve here too."""

import sys
from pathlib import Path

for family in ("tokens", "shots", "pixels"):
    sys.path.append(str(Path(__file__).parents[1] / family))
