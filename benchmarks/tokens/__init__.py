"""The study and the timings of `tokens`."""
