"""Choose the in-context examples (shots) of a prompt.

A selector picks a few examples of a pool for a query: pointer selectors V0 to V3, which learn from
a teacher (`LearnedSelector`), and baselines. `Pool`, `Query` and `Record` are the data; every
selector has `fit`, `select`, `save` and `load`. `predict` loads a selector and picks for one
question.
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
