"""Baselines that learned selectors are compared with, and oracles that see the answer."""

from eligo.shots.baselines.best_fixed import BestFixed
from eligo.shots.baselines.bm25 import BM25
from eligo.shots.baselines.dpp import DPP
from eligo.shots.baselines.knn import KNN
from eligo.shots.baselines.mmr import MMR
from eligo.shots.baselines.oracles import (
    BeamOracle,
    GreedyOracle,
    StaticOracle,
    Utility,
    UtilityTable,
)
from eligo.shots.baselines.random import Random, ZeroShot

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
