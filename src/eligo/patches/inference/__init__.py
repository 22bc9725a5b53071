"""Predict, evaluate, convert checkpoints."""
