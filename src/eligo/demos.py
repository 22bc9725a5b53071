"""The old name of `eligo.shots`."""

raise ImportError("eligo.demos is now eligo.shots")
