"""How good a model is: metrics, whole, multi-scale and sliding evaluation."""
