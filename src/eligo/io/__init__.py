"""Files: atomic output, reading within limits, locks."""
