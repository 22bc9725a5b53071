"""How they are trained: objective, task, validation, health."""
