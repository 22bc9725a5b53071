"""The explorer: a page that shows what was kept and dropped, and the cost."""
