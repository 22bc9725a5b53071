"""The study without a model: utilities that are formulas, with a known optimum.

    relevance    sum_i cos(q, d_i)
    redundancy   relevance - w sum_{i<j} cos(d_i, d_j)
    order        sum_i (1 - 0.3 i) cos(q, d_i) + w sum_i <head of d_{i-1}, tail of d_i>

10 candidates and lists of 3 are few enough to try all 720. A selector without a state can be
perfect on relevance only: in redundancy, a pick changes the value of the others; in order, the next
pick depends on the last one (head and tail are the two halves of a vector).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from benchmarks.shots.config import StudyConfig
from benchmarks.shots.stages import Report
from benchmarks.shots.summary import Interval, target
from eligo.report.intervals import bootstrap_means
from eligo.shots.baselines import KNN, MMR, Random, StaticOracle
from eligo.shots.config import FitConfig
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.inference.learned_selector import NAMED, LearnedSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector
from eligo.shots.training.task import fit_pointer

Kind = Literal["relevance", "redundancy", "order"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DIM, CANDIDATES, SHOTS = 16, 10, 3
_POOL, _CENTRES, _HIDDEN = 240, 6, 32
_FADE = 0.3  # of the relevance, from position to position
_WEIGHT: dict[Kind, float] = {"relevance": 0.0, "redundancy": 0.7, "order": 1.6}
_SMALL = 0.05  # target for the regret, as a share of that of random lists
_BASELINES: dict[str, type[Any]] = {"random": Random, "knn": KNN, "mmr": MMR}
_ORACLE = "static_oracle"


class AnalyticUtility:
    """One of the formulas, on the vectors of a pool."""

    def __init__(self, pool: Pool, kind: Kind) -> None:
        self.pool = pool
        self.kind: Kind = kind

    def values(
        self, query: Query, prefix: tuple[str, ...], candidates: Sequence[str]
    ) -> Float[Tensor, " candidates"]:
        """Return the value of `(*prefix, c)` for each candidate c."""
        vectors = self.pool.vectors[self.pool.rows([*prefix, *candidates])]
        size = len(prefix)
        lists = torch.tensor([[*range(size), size + n] for n in range(len(candidates))])
        return list_values(vectors, query.vector, lists, self.kind)


def list_values(
    candidates: Float[Tensor, "candidates dim"],
    query: Float[Tensor, " dim"],
    lists: Int64[Tensor, "lists shots"],
    kind: Kind,
) -> Float[Tensor, " lists"]:
    """Return the values of lists, given as positions among the candidates."""
    relevance, weight, shots = (candidates @ query)[lists], _WEIGHT[kind], lists.shape[1]
    if kind == "order":
        half = candidates.shape[1] // 2
        follows = candidates[:, : candidates.shape[1] - half] @ candidates[:, half:].T
        fade = 1 - _FADE * torch.arange(shots)
        return (relevance * fade).sum(1) + weight * follows[lists[:, :-1], lists[:, 1:]].sum(1)
    similarity = (candidates @ candidates.T)[lists[:, :, None], lists[:, None]]
    return relevance.sum(1) - weight * similarity.triu(1).sum((1, 2))


class Task:
    """Queries of one formula, with their candidates and the values of all lists."""

    def __init__(self, pool: Pool, kind: Kind, count: int) -> None:
        self.pool, self.utility = pool, AnalyticUtility(pool, kind)
        generator = torch.Generator().manual_seed(1)
        vectors = torch.randn(count, DIM, generator=generator)
        self.queries = [Query(f"q{number}", vector) for number, vector in enumerate(vectors)]
        drawn = [torch.randperm(_POOL, generator=generator)[:CANDIDATES] for _ in range(count)]
        self.rows = torch.stack(drawn)
        self.lists = torch.tensor(list(permutations(range(CANDIDATES), SHOTS)))
        self.values = torch.stack(
            [
                list_values(pool.vectors[rows], query.vector, self.lists, kind)
                for query, rows in zip(self.queries, self.rows, strict=True)
            ]
        )  # (queries, lists)

    def records(self, numbers: range) -> list[Record]:
        """Return the best lists of some queries, with the scores of all candidates at each step."""
        return [self._record(number) for number in numbers]

    def _record(self, number: int) -> Record:
        query, names = self.queries[number], self.pool.names(self.rows[number])
        best = self.lists[self.values[number].argmax()].tolist()
        scores, picks, before = torch.full((SHOTS, CANDIDATES), torch.nan), (), 0.0
        for step, pick in enumerate(best):
            left = [c for c in range(CANDIDATES) if c not in best[:step]]
            values = self.utility.values(query, picks, [names[c] for c in left])
            scores[step, left] = values - before
            picks, before = (*picks, names[pick]), float(values[left.index(pick)])
        return Record(query, list(picks), names, step_scores=scores)

    def regret(self, selector: PoolSelector, records: Sequence[Record]) -> list[float]:
        """Return the value of the best list minus that of the chosen one, by query."""
        regrets = []
        for record in records:
            chosen = selector.select(record.query, SHOTS, candidates=record.candidates)
            best, achieved = (
                float(self.utility.values(record.query, tuple(picks[:-1]), picks[-1:])[0])
                for picks in (record.picks, self.pool.picked(chosen))
            )
            regrets.append(best - achieved)
        return regrets


def analytic_study(
    config: StudyConfig, report: Report = lambda *_: None, kinds: Sequence[Kind] = KINDS
) -> dict[str, Any]:
    """Return the mean regret of all selectors on every formula, with intervals and targets."""
    pool, count = clustered_pool(), config.analytic_records
    names = [*_BASELINES, _ORACLE, *NAMED]
    rows: list[dict[str, Any]] = []
    targets: list[dict[str, Any]] = []
    for kind in kinds:
        task = Task(pool, kind, count)
        training = task.records(range(4 * count // 5))
        test = task.records(range(4 * count // 5, count))
        regret: dict[str, list[float]] = {}
        for name in names:
            report("analytic", len(rows) + len(regret), len(kinds) * len(names))
            regret[name] = task.regret(_selector(name, task, training, config), test)
        chance = sum(regret["random"]) / len(test)
        for name, (mean, low, high) in zip(names, _means(config, regret.values()), strict=True):
            entry = {"formula": kind, "row": name, "regret": mean, "low": low, "high": high}
            rows.append(entry | {"of chance": mean / chance})
        targets += _targets(config, kind, regret, chance)
    report("analytic", len(rows), len(rows))
    return {"formulas": rows, "formula targets": targets}


def _means(config: StudyConfig, columns: Iterable[Sequence[float]]) -> list[Interval]:
    return bootstrap_means([[column] for column in columns], resamples=config.resamples)


def _targets(
    config: StudyConfig, kind: Kind, regret: Mapping[str, Sequence[float]], chance: float
) -> list[dict[str, Any]]:
    """V1 is nearly perfect if examples do not interact; otherwise models with a state beat it."""
    if kind == "relevance":
        share = sum(regret["v1"]) / len(regret["v1"]) / chance
        name = "relevance: regret of v1, as a share of that of random lists"
        return [target(name, share, f"<= {_SMALL}", share <= _SMALL)]
    targets = []
    for model in ("v0", "v2_gru"):
        differences = [
            static - stateful for static, stateful in zip(regret["v1"], regret[model], strict=True)
        ]
        _, low, _ = _means(config, [differences])[0]
        name = f"{kind}: regret of {model} below that of v1 (lower end)"
        targets.append(target(name, low, "> 0", low > 0))
    return targets


def clustered_pool() -> Pool:
    """Return examples around a few centres, so that some are similar."""
    generator = torch.Generator().manual_seed(0)
    centres = 0.8 * torch.randn(_CENTRES, DIM, generator=generator)
    around = torch.randn(_POOL, DIM, generator=generator)
    vectors = around + centres.repeat(_POOL // _CENTRES, 1)
    return Pool([f"d{row}" for row in range(_POOL)], vectors)


def _selector(
    name: str, task: Task, training: Sequence[Record], config: StudyConfig
) -> PoolSelector:
    if name == _ORACLE:
        return StaticOracle(task.utility).fit([], task.pool)
    if name in _BASELINES:
        return _BASELINES[name]().fit(training, task.pool)
    changes = {"d_model": DIM, "hidden_dim": _HIDDEN, "dropout": 0.0, "K": CANDIDATES}
    changes |= {"residual": False}  # the documented form
    settings = FitConfig(min_steps=config.analytic_steps, num_epochs=1, lr=5e-3, patience=20)
    model = fit_pointer(NAMED[name].replace(changes), training, task.pool, settings)
    return LearnedSelector.of(model, task.pool)
