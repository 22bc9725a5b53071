"""The lists that baselines, trained selectors and oracles choose for the test queries.

All choose among the same candidates, one example after the other, so a list of two is the beginning
of a list of four; except the beam oracle, and MMR, which has a balance for each length.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.shots.list_search import fit_fixed
from benchmarks.shots.measure import Chosen, EvaluationSet
from benchmarks.shots.stages import Stages
from eligo import ops
from eligo.shots.baselines import DPP, KNN, MMR, Random
from eligo.shots.baselines.mmr import LAMBDAS
from eligo.shots.model.pretrained import load_pointer
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.teacher import TeacherResult

ZERO, FIXED, STATIC, BEAM = "zero_shot", "best_fixed", "static_oracle", "beam_oracle"
TUNED = "mmr"
BASELINES = ("random", FIXED, "knn", TUNED, "dpp")
_BATCH = 512  # queries


def choose(name: str, stages: Stages, test: EvaluationSet, selectors: Path) -> Chosen:
    """Return the lists of a baseline, an oracle, or the trained selector in `selectors/name`."""
    shots, most = stages.config.shots, max(stages.config.shots)
    if name == ZERO:
        return Chosen(dict.fromkeys(shots, test.candidates[:, :0]), None)
    if name == STATIC:
        return Chosen.nested(ops.top_k(test.first, most), test.first, shots)
    if name == BEAM:
        return Chosen(test.labels, test.first)
    if name == TUNED:
        chosen, scores = {}, None
        for count, balance in balances(stages).items():
            selector = MMR(balance).fit([], test.scorer.world.pool)
            chosen[count], scores = picked_by(selector, test.results, test.candidates, count)
        return Chosen(chosen, scores)
    if name in BASELINES:
        picks_and_scores = picked_by(baseline(name, stages), test.results, test.candidates, most)
    else:
        picks_and_scores = picked_by_model(selectors / name, test, most, stages.device)
    return Chosen.nested(*picks_and_scores, shots)


def baseline(name: str, stages: Stages) -> PoolSelector:
    """Return a baseline without parameters to tune, on the test pool."""
    if name == FIXED:
        most = max(stages.config.shots)
        return fit_fixed(stages.scorer("test"), stages.queries("test").spare, most)
    kinds = {"random": Random, "knn": KNN, "dpp": DPP}
    return kinds[name]().fit([], stages.queries("test").world.pool)


def balances(stages: Stages) -> dict[int, float]:
    """Return MMR's lambda by number of shots: best log-probability on validation queries.

    Agreement with the teacher's lists would be misleading: many lists are as good as the best one.
    """
    shots = stages.config.shots

    def tune() -> dict[str, float]:
        queries, results = stages.queries("validation"), stages.results("validation")
        scorer = stages.scorer("validation")

        def mean_logprob(balance: float, count: int) -> float:
            selector = MMR(balance).fit([], queries.world.pool)
            picks, _ = picked_by(selector, results, queries.candidates, count)
            answers = scorer.answers(queries.rows, queries.candidates.gather(1, picks))
            return float(answers.logprob.mean())

        return {str(count): max(LAMBDAS, key=partial(mean_logprob, count=count)) for count in shots}

    tuned = stages.kept("balances.json", {"shots": shots}, tune)
    return {count: tuned[str(count)] for count in shots}


def picked_by(
    selector: PoolSelector, results: Sequence[TeacherResult], candidates: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """Picks and first scores of a selector, query by query."""
    picks, scores = [], []
    for result, rows in zip(results, candidates, strict=True):
        selection = selector.select(result.query, most, candidates=result.candidates)
        position = torch.full((len(selector.pool),), -1)
        position[rows] = torch.arange(len(rows))
        picks.append(position[selection.indices])
        scores.append(selection.scores[rows])
    return torch.stack(picks), torch.stack(scores)


@torch.no_grad()
def picked_by_model(
    run: Path, test: EvaluationSet, most: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Picks and first scores of the best model of a run, in batches of queries."""
    model, world = load_pointer(run).to(device), test.scorer.world
    picks, scores = [], []
    for rows, own in zip(test.rows.split(_BATCH), test.candidates.split(_BATCH), strict=True):
        vectors, candidates = world.queries.vectors[rows], world.pool.vectors[own]
        selection = model.predict(vectors.to(device), candidates.to(device), shots=most).selection
        picks.append(selection.indices.cpu())
        scores.append(selection.scores.cpu())
    return torch.cat(picks), torch.cat(scores)
