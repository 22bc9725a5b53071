"""An index of images or texts, two-stage search in it, and token pooling."""

from eligo.patches.index.build import Built, build_index
from eligo.patches.index.search import Calibration, Hits, Searcher, calibrate, merge_hits
from eligo.patches.index.sources import ImageFiles, ScenePictures, Source, TextLines
from eligo.patches.index.store import IndexFolder

__all__ = [
    "Built",
    "Calibration",
    "Hits",
    "ImageFiles",
    "IndexFolder",
    "ScenePictures",
    "Searcher",
    "Source",
    "TextLines",
    "build_index",
    "calibrate",
    "merge_hits",
]
