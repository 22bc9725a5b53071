"""Studies and speed of `pixels`."""
