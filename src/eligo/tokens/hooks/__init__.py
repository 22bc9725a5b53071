"""How tokens leave a running model: hooks, masks, positions, and what is refused."""
