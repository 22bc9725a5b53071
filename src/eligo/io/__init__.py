"""Files: written whole or not at all, read within limits, one writer at a time."""
