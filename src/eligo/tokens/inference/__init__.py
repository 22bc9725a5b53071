"""What pruning is worth, and what it takes: accuracy, sweeps, the exam, the clock."""
