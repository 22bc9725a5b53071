"""Which image patches matter to this text?

A text selects its patches, they are folded into a few tokens, and words and tokens are matched both
ways (SEPS, arXiv 2511.01390; LAPS). `CrossSparseAggrNet` scores all pairs; its parts `TokenSparse`,
`TokenAggregation`, `DualTokenAggregation` and `HRPA` can be used alone, and `help()` of each shows
its equations and tensor shapes. `RetrievalModel` is the network with its encoders; `predict`
explains one image and one text.

Subpackages: `model` (encoders and network), `kernels` (fast scores of all pairs),
`data` (scenes and files), `training`, `inference` (predict, evaluate, convert), `index` (search and
token pooling).
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
