"""Forward hooks that remove or mask vision tokens in a running model."""
