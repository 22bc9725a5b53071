"""The rows of the exam's table: what rivals, trained arms and oracles choose for the test queries.

All choose among the same candidates. Every row but the beam oracle picks one example after the
other, so its list of two is the beginning of its list of four.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from eligo import ops
from eligo.demos.data.pool import Pool
from eligo.demos.data.records import Record
from eligo.demos.exam.stages import Asked, Stages
from eligo.demos.models.build import build_model
from eligo.demos.models.config import AnyPointerConfig
from eligo.demos.rivals import DPP, KNN, MMR, Random
from eligo.demos.selector import PoolSelector
from eligo.demos.teach.teacher import Lesson
from eligo.train import load_weights

ZERO, STATIC, BEAM = "zero_shot", "static_oracle", "beam_oracle"
RIVALS = ("random", "best_fixed", "knn", "mmr", "dpp")
_AT_ONCE = 512  # queries


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a row chose for every query."""

    picks: Mapping[int, Int64[Tensor, "queries shots"]]
    """Positions among the candidates, by number of shots."""
    scores: Float[Tensor, "queries candidates"] | None
    """What it ranked them by at the first step."""

    @classmethod
    def nested(
        cls, picks: Int64[Tensor, "queries shots"], scores: Tensor | None, shots: Sequence[int]
    ) -> "Chosen":
        """Of one list, whose beginnings are the shorter ones."""
        return cls({count: picks[:, :count] for count in shots}, scores)


def rival(name: str, stages: Stages, validation: Callable[[], list[Record]]) -> PoolSelector:
    """A rival on the test pool; what can be tuned is tuned on the validation split."""
    from eligo.demos.exam.fixed import fit_fixed

    pool, most = stages.asked("test").world.pool, max(stages.config.shots)
    match name:
        case "random":
            return Random().fit([], pool)
        case "knn":
            return KNN().fit([], pool)
        case "dpp":
            return DPP().fit([], pool)
        case "mmr":
            tuned = MMR().fit(validation(), stages.asked("validation").world.pool)
            return MMR(tuned.balance).fit([], pool)
        case "best_fixed":
            return fit_fixed(stages.scorer("test"), stages.asked("test").spare, most)
    raise ValueError(name)


def chosen_by(selector: PoolSelector, asked: Asked, lessons: Sequence[Lesson], most: int) -> Chosen:
    """The choice of a selector that takes one query at a time."""
    picks, scores = [], []
    for lesson, rows in zip(lessons, asked.candidates, strict=True):
        found = selector.select(lesson.query, most, candidates=lesson.candidates)
        place = torch.full((len(asked.world.pool),), -1)
        place[rows] = torch.arange(len(rows))
        picks.append(place[found.indices])
        scores.append(found.scores[rows])
    return Chosen({most: torch.stack(picks)}, torch.stack(scores))


@torch.no_grad()
def chosen_by_model(
    config: AnyPointerConfig, folder: Path, asked: Asked, most: int, device: torch.device
) -> Chosen:
    """The choice of a trained model, many queries at a time."""
    model = build_model(config)
    load_weights(folder, {"pointer": model})
    model = model.to(device).eval()
    pool: Pool = asked.world.pool
    vectors = asked.world.queries.vectors[asked.queries]
    picks, scores = [], []
    for part in torch.arange(len(vectors)).split(_AT_ONCE):
        candidates = pool.vectors[asked.candidates[part]].to(device)
        found = model.predict(vectors[part].to(device), candidates, shots=most)
        picks.append(found.selection.indices.cpu())
        scores.append(found.selection.scores.cpu())
    return Chosen({most: torch.cat(picks)}, torch.cat(scores))


def oracle(name: str, lessons: Sequence[Lesson], shots: Sequence[int], beam: int) -> Chosen:
    """What is best alone, or together, by the teacher's own scores."""
    first = torch.stack([lesson.logprob[0] for lesson in lessons])
    if name == STATIC:
        return Chosen.nested(ops.top_k(first, max(shots)), first, shots)
    return Chosen({count: best_lists(lessons, count, beam) for count in shots}, first)


def best_lists(lessons: Sequence[Lesson], shots: int, beam: int) -> Int64[Tensor, "queries shots"]:
    """The teacher's labels."""
    return torch.tensor([lesson.shortened(shots, beam, "logprob")[0].picks for lesson in lessons])
