"""The commands `eligo pixels ...`, one file each."""
