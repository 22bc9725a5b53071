"""State of the process that threads share."""

from threading import Lock

warnings_lock = Lock()
"""Held while `warnings.catch_warnings` is entered or left: the filters belong to all threads."""
