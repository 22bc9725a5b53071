"""The pointer selectors V0 to V3, their losses and their files."""
