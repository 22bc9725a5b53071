"""Studies and speed of `scenes`."""
