"""Find images by text and texts by image: index files, two-stage search, its measured recall."""

from eligo.patches.retrieval.build import Built, build_index
from eligo.patches.retrieval.calibration import Calibration, calibrate
from eligo.patches.retrieval.search import Hits, Searcher, merge_hits
from eligo.patches.retrieval.sources import ImageFiles, ScenePictures, Source, TextLines
from eligo.patches.retrieval.store import IndexFolder

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
