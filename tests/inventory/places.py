"""Where entries of `before.json` are now: moved, removed or changed, section by section.

A key that ends in `*` stands for all entries that begin so; in `MOVED` its value ends in `*` too,
and what the star stood for is kept. Exact keys win, then the longest beginning.
"""

MOVED: dict[str, dict[str, str]] = {}
"""Per section, old entry -> new entry, e.g. `{"public": {"eligo.demos.*": "eligo.shots.*"}}`."""

REMOVED: dict[str, dict[str, str]] = {}
"""Per section, old entry -> why it is gone, in one sentence."""

CHANGED: dict[str, dict[str, str]] = {}
"""Per section, old entry -> why its value (a default, a file, an output) is another one now."""

VALUES: dict[str, str] = {}
"""Text values that were renamed wherever they stand, e.g. `{"demos.train": "shots.train"}`."""
