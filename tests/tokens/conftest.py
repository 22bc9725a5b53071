"""Makes the tiny tokenizers of the shots tests importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "shots"))
