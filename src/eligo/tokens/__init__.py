"""Which vision tokens survive inside the language model?

`predict` answers one question. To prune a model yourself, describe what to keep with a `Plan`, run
the model inside `with pruning(model, plan) as trace:`, and read the trace.
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
