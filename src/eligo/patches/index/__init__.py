"""Find images by text and texts by image: index files, two-stage search, its measured recall."""

from eligo.patches.index.build import Built, build_index
from eligo.patches.index.calibration import Calibration, calibrate
from eligo.patches.index.search import Hits, Searcher, merge_hits
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
