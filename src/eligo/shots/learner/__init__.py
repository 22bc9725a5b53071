"""The exam: a small model that learns words from examples, and who chooses them best. Section 6."""
