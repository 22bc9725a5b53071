"""Questions about images, from scenes or files, as rows for a host."""
