"""How fast: training, reranking, searching a large pool. Section 8."""
