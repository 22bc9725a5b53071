"""The network: DFormerv2, the Semantic Alignment Module, the head; official weights."""
