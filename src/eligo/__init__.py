"""eligo: learned selection in vision-language models.

Score candidates against a query, keep an exact budget, fold or drop the rest; at four scales:
examples (`shots`), image patches (`patches`), vision tokens (`tokens`), words (`pixels`).

Names are imported on first use, so that `import eligo` and `eligo --help` stay light.
"""

from eligo.lazy import lazy_names

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
