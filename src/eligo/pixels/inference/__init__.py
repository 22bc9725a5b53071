"""A trained model in use: load, predict, export, time."""
