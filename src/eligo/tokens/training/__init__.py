"""Training of merger and pruners: objective, task, validation, health."""
