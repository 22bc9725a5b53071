"""The commands `eligo shots ...`, one file each."""
