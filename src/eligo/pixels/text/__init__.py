"""Words: where they come from, what is written around them, how they become vectors."""
