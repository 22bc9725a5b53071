"""Embed, predict and evaluate with a selector."""
