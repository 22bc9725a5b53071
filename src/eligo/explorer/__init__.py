"""The explorer: one page that shows what was kept, what was dropped, and what that cost."""
