"""Training of retrieval models: task, losses, gathering over processes."""
