"""The commands `eligo patches ...`, one file each."""
