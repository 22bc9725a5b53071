"""Studies and speed of `patches`."""
