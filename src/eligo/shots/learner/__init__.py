"""A small model that learns made-up words from the examples in its prompt, and its world."""
