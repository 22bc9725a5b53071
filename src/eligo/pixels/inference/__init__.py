"""Load, predict, evaluate, export and convert trained models."""
