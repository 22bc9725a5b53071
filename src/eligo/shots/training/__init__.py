"""Training of pointer selectors on a teacher's records."""
