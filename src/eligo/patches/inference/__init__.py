"""A trained model in use: predict, evaluate, convert checkpoints."""
