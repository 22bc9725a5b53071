"""`python -m eligo ...`, and so `accelerate launch -m eligo ...`."""

import sys

from eligo.cli import main

if __name__ == "__main__":
    sys.exit(main())
