"""A trained model in use: predict, explain, convert, time."""
