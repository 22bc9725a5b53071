"""Which words guide which pixel?

RGB-D segmentation: DFormerv2, in which depth shapes attention, with the Semantic Alignment Module,
through which every pixel looks at the words of its image. `PixelsModel` is the network, `Segmenter`
the network with its text encoder and class names, `predict` segments two picture files; depth and
words are optional. `SIZES` and `PRESETS` are changes of a `PixelsConfig`.

Rooms: `model` (the network), `text` (words to vectors), `data` (scenes and files), `training`,
`measure` (metrics, evaluation), `inference` (load, predict, export).
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
