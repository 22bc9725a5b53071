"""Which examples enter the prompt?

A pool of examples, a query, and a selector that picks a few of them: pointer selectors V0 to V3,
which learn from a teacher (`LearnedSelector`), and baselines. `Pool`, `Query` and `Record` are the
data; every selector has `fit`, `select`, `save` and `load`. `predict` does it all for one question.
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
