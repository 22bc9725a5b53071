"""The embedded exam: what words, temperature and depth do, on generated rooms."""
