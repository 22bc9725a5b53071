"""eligo: learned selection in vision-language models.

Score candidates against a query, keep an exact budget, merge or drop the rest; for in-context
examples (`shots`), image patches (`patches`), vision tokens (`tokens`) and words (`pixels`).

Names are imported on first use, so that `import eligo` and `eligo --help` are fast.
"""

from eligo.lazy import lazy_names

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
