"""The commands `eligo tokens ...`, one file each."""
