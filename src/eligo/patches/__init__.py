"""Which image patches matter to this text?

A text picks its patches, they fold into a few tokens, words and tokens are matched both ways (SEPS,
arXiv 2511.01390; LAPS). `CrossSparseAggrNet` scores all pairs; its parts `TokenSparse`,
`TokenAggregation`, `DualTokenAggregation` and `HRPA` stand alone, and `help()` of each shows its
equations and the way of its tensors. `RetrievalModel` is the network with its encoders, `predict`
opens up one image and one text.

Rooms: `match` (patches and words to scores), `kernels` (the same, fast), `data` (scenes and files),
`training`, `measure` (metrics, evaluation), `exam`, `inference` (predict, convert, time),
`retrieval` (an index and its search, pooling).
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
