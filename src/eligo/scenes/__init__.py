"""Generated scenes with image, depth, labels, captions, questions and tags."""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
