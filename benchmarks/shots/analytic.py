"""The exam without a model: utilities that are formulas, and the true optimum. Section 6.

10 candidates and lists of 3 are few enough to try all 720. Where examples do not interact
(relevance), a selector without a state can be perfect; where a pick changes what the others are
worth (redundancy, order), it cannot.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch

from benchmarks.shots.analytic_utilities import KINDS, AnalyticUtility, Kind, list_values
from eligo.report.intervals import bootstrap_means
from eligo.shots.baselines import KNN, MMR, Random, StaticOracle
from eligo.shots.config import FitConfig
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record
from eligo.shots.inference.learned_selector import NAMED, LearnedSelector
from eligo.shots.learner.config import ExamConfig
from eligo.shots.learner.verdict import must
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector
from eligo.shots.training.task import fit_pointer

DIM, CANDIDATES, SHOTS = 16, 10, 3
_POOL, _CENTRES, _HIDDEN = 240, 6, 32
_NEARLY = 0.05  # of chance's regret is near 0
_PLAIN: dict[str, type[Any]] = {
    "random": Random, "knn": KNN, "mmr": MMR, "static_oracle": StaticOracle,
}  # fmt: skip
Tell = Callable[[str, int, int], None]


class Task:
    """One formula: queries, what they can get, what is best."""

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
        """The best lists of some queries, and the scores of all candidates at each step."""
        return [self._record(number) for number in numbers]

    def _record(self, number: int) -> Record:
        query, names = self.queries[number], self.pool.names(self.rows[number])
        best = self.lists[self.values[number].argmax()].tolist()
        scores, told, before = torch.full((SHOTS, CANDIDATES), torch.nan), (), 0.0
        for step, place in enumerate(best):
            left = [c for c in range(CANDIDATES) if c not in best[:step]]
            found = self.utility.values(query, told, [names[c] for c in left])
            scores[step, left] = found - before
            told, before = (*told, names[place]), float(found[left.index(place)])
        return Record(query, list(told), names, step_scores=scores)

    def regret(self, selector: PoolSelector, records: Sequence[Record]) -> list[float]:
        """What the best list is worth more than the chosen one, by query."""
        lost = []
        for record in records:
            chosen = selector.select(record.query, SHOTS, candidates=record.candidates)
            lists = (record.picks, self.pool.picked(chosen))
            best, found = (
                float(self.utility.values(record.query, tuple(told[:-1]), told[-1:])[0])
                for told in lists
            )
            lost.append(best - found)
        return lost


def analytic_exam(
    config: ExamConfig, tell: Tell = lambda *_: None, kinds: Sequence[Kind] = KINDS
) -> dict[str, Any]:
    """Mean regret of all on every formula, with intervals; and what must hold."""
    pool, count = clustered_pool(), config.analytic_records
    names = [*_PLAIN, *NAMED]
    rows: list[dict[str, Any]] = []
    musts: list[dict[str, Any]] = []
    for kind in kinds:
        task = Task(pool, kind, count)
        training = task.records(range(4 * count // 5))
        test = task.records(range(4 * count // 5, count))
        lost: dict[str, list[float]] = {}
        for name in names:
            tell("analytic", len(rows) + len(lost), len(kinds) * len(names))
            lost[name] = task.regret(_selector(name, task, training, config), test)
        chance = sum(lost["random"]) / len(test)
        for name, (mean, low, high) in zip(names, _means(config, lost.values()), strict=True):
            told = {"formula": kind, "row": name, "regret": mean, "low": low, "high": high}
            rows.append(told | {"of chance": mean / chance})
        musts += _musts(config, kind, lost, chance)
    tell("analytic", len(rows), len(rows))
    return {"formulas": rows, "formula musts": musts}


def _means(
    config: ExamConfig, columns: Iterable[Sequence[float]]
) -> list[tuple[float, float, float]]:
    return bootstrap_means([[column] for column in columns], resamples=config.resamples)


def _musts(
    config: ExamConfig, kind: Kind, lost: Mapping[str, Sequence[float]], chance: float
) -> list[dict[str, Any]]:
    """V1 is nearly perfect where examples do not interact; elsewhere those with a state beat it."""
    if kind == "relevance":
        share = sum(lost["v1"]) / len(lost["v1"]) / chance
        name = "relevance: regret of v1, as a share of chance's"
        return [must(name, share, f"<= {_NEARLY}", share <= _NEARLY)]
    musts = []
    for arm in ("v0", "v2_gru"):
        apart = [one - other for one, other in zip(lost["v1"], lost[arm], strict=True)]
        _, low, _ = _means(config, [apart])[0]
        musts.append(must(f"{kind}: {arm} regrets less than v1 (lower end)", low, "> 0", low > 0))
    return musts


def clustered_pool() -> Pool:
    """Examples around a few centres: some are much alike."""
    generator = torch.Generator().manual_seed(0)
    centres = 0.8 * torch.randn(_CENTRES, DIM, generator=generator)
    around = torch.randn(_POOL, DIM, generator=generator)
    vectors = around + centres.repeat(_POOL // _CENTRES, 1)
    return Pool([f"d{row}" for row in range(_POOL)], vectors)


def _selector(
    name: str, task: Task, training: Sequence[Record], config: ExamConfig
) -> PoolSelector:
    if name == "static_oracle":
        return StaticOracle(task.utility).fit([], task.pool)
    if name in _PLAIN:
        return _PLAIN[name]().fit(training, task.pool)
    changes = {"d_model": DIM, "hidden_dim": _HIDDEN, "dropout": 0.0, "K": CANDIDATES}
    settings = FitConfig(min_steps=config.analytic_steps, num_epochs=1, lr=5e-3, patience=20)
    model = fit_pointer(NAMED[name].replace(changes), training, task.pool, settings)
    return LearnedSelector.of(model, task.pool)
