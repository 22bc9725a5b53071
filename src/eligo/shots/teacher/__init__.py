"""The teacher: finds the examples that make a host's correct answer most likely."""
