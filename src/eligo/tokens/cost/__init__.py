"""Costs of a plan: tokens, FLOPs, bytes of the key-value cache."""
