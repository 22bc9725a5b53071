"""Patches and words to scores: SEPS and LAPS, part by part, and what they are measured against."""
