"""Queries, records of a teacher, text files, questions with answers."""
