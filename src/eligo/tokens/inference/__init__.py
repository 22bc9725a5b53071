"""Predict, evaluate, sweep, time and export."""
