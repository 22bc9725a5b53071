"""The teacher: which list of examples makes the right answer likely? Section 2."""
