"""Studies and speed of `shots`."""
