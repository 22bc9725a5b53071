"""Selectors that learned ones must beat, and oracles that see the answer. Section 4.

zero-shot, random, best-fixed; kNN, MMR, DPP on embeddings; BM25 on words; static, greedy, beam.
"""

from eligo.shots.baselines.bm25 import BM25
from eligo.shots.baselines.oracles import BeamOracle, GreedyOracle, StaticOracle
from eligo.shots.baselines.plain import BestFixed, Random, ZeroShot
from eligo.shots.baselines.similar import DPP, KNN, MMR
from eligo.shots.baselines.utility import Utility, UtilityTable

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
