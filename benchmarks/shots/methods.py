"""The lists that baselines, trained selectors and oracles choose for the test queries.

All choose among the same candidates, one example after the other, so a list of two is the beginning
of a list of four; except the beam oracle, and MMR, which has a balance for each length.
"""

from collections import defaultdict
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
        picks = ops.top_k(test.first, most)
        return Chosen.nested(picks, test.first, shots, test.fixed_steps(test.first))
    if name == BEAM:
        return Chosen(test.labels, test.first, test.taught_steps())
    if name == TUNED:
        chosen, scores = {}, None
        for count, balance in balances(stages).items():
            selector = MMR(balance).fit([], test.scorer.world.pool)
            chosen[count], scores = picked_by(selector, test.results, test.candidates, count)
        return Chosen(chosen, scores)
    if name in BASELINES:
        picks_and_scores = picked_by(baseline(name, stages), test.results, test.candidates, most)
        return Chosen.nested(*picks_and_scores, shots)
    return picked_by_model(selectors / name, test, stages.device)


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
def picked_by_model(run: Path, test: EvaluationSet, device: torch.device) -> Chosen:
    """Picks and scores of the best model of a run, in batches of queries."""
    model, world = load_pointer(run).to(device), test.scorer.world
    most, parts = max(test.labels), defaultdict(list)
    for batch in torch.arange(len(test.rows)).split(_BATCH):
        vectors = world.queries.vectors[test.rows[batch]].to(device)
        candidates = world.pool.vectors[test.candidates[batch]].to(device)
        selection = model.predict(vectors, candidates, shots=most).selection
        parts["picks"].append(selection.indices.cpu())
        parts["scores"].append(selection.scores.cpu())
        for count, labels in test.labels.items():
            forced = model(vectors, candidates, labels[batch].to(device), return_loss=False)
            parts[count].append(forced["logits"].cpu())
    joined = {name: torch.cat(tensors) for name, tensors in parts.items()}
    picks, scores = joined.pop("picks"), joined.pop("scores")
    return Chosen.nested(picks, scores, list(test.labels), joined)
