"""Pointer selectors that learn from records, and then select. Sections 3, 4 and 7."""
