"""One loop for all families: optimisers, schedules, checkpoints and exact resume, search."""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
