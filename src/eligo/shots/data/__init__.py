"""The data of the family: a pool of examples, queries, a teacher's records, text files."""
