"""Encoders, the SEPS and LAPS modules, and baselines."""
