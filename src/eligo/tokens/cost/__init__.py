"""What a plan costs: tokens, FLOPs, key-value bytes."""
