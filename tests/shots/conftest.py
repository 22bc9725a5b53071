"""Makes the tiny hosts of the tokens tests importable here."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tokens"))
