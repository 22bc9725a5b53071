"""Studies and speed of `tokens`."""
