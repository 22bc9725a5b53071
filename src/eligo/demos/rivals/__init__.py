"""Selectors that learned ones must beat, and oracles that see the answer. Section 4.

zero-shot, random, best-fixed; kNN, MMR, DPP on embeddings; BM25 on words; static, greedy, beam.
"""

from eligo.demos.rivals.bm25 import BM25
from eligo.demos.rivals.oracles import BeamOracle, GreedyOracle, StaticOracle
from eligo.demos.rivals.plain import BestFixed, Random, ZeroShot
from eligo.demos.rivals.similar import DPP, KNN, MMR
from eligo.demos.rivals.utility import Utility, UtilityTable

__all__ = [
    "BM25",
    "DPP",
    "KNN",
    "MMR",
    "BeamOracle",
    "BestFixed",
    "GreedyOracle",
    "Random",
    "StaticOracle",
    "Utility",
    "UtilityTable",
    "ZeroShot",
]
