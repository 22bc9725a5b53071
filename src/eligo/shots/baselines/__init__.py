"""Baselines that learned selectors are compared with, and oracles that use the answer."""

from eligo.shots.baselines.best_fixed import BestFixed as BestFixed
from eligo.shots.baselines.bm25 import BM25 as BM25
from eligo.shots.baselines.dpp import DPP as DPP
from eligo.shots.baselines.knn import KNN as KNN
from eligo.shots.baselines.mmr import MMR as MMR
from eligo.shots.baselines.oracles import BeamOracle as BeamOracle
from eligo.shots.baselines.oracles import GreedyOracle as GreedyOracle
from eligo.shots.baselines.oracles import StaticOracle as StaticOracle
from eligo.shots.baselines.oracles import Utility as Utility
from eligo.shots.baselines.oracles import UtilityTable as UtilityTable
from eligo.shots.baselines.random import Random as Random
from eligo.shots.baselines.random import ZeroShot as ZeroShot
