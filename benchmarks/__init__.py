"""Studies and timing: `python -m benchmarks.FAMILY.NAME`, from the root of the repository."""
