"""The study and the timings of `patches`."""
