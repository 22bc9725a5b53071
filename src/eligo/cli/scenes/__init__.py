"""The commands `eligo scenes ...`, one file each."""
