"""Which vision tokens survive inside the language model?

Say what to keep with a `Plan`, run a model `with pruning(model, plan):`, read the `Trace`.

Rooms: `methods` (training-free baselines), `learned` (merger, pruners, discriminator), `hosts` (which
models), `inside` (how tokens leave them), `data`, `training`, `measure` (evaluation, exam, sweep,
bench), `cost` (what it saves).
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
