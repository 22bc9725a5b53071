"""RGB-D segmentation guided by words: DFormerv2 with the Semantic Alignment Module.

Depth shapes the attention of DFormerv2, and through the module every pixel attends to the words of
its image. `PixelsModel` is the network, `Segmenter` the network with its text encoder and class
names, `predict` segments an image; depth and words are optional.

Subpackages: `model` (the network), `text` (words to vectors), `data` (scenes and files),
`training`, `inference` (load, predict, evaluate, export, convert).
"""

from eligo.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
