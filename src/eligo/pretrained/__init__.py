"""Pretrained models: found by name or folder, checked, and loaded strictly."""
