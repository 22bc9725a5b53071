"""Speed and pictures of the explorer."""
