"""Training on the common loop."""
