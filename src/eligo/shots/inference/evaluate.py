"""What a trained selector is worth: against the teacher's choices, and by the host's answers.

Baselines get the same candidates. Every number of shots is shown, as more can hurt; a difference is
called one only where its paired 95 % interval leaves out 0.
"""

from collections.abc import Sequence
from typing import Any

from eligo.report.intervals import paired_bootstrap
from eligo.shots.baselines import KNN, Random
from eligo.shots.data.items import answers_of, as_query
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record, as_example
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.hosts.scorer import Scorer
from eligo.shots.inference.predict import Deployed
from eligo.shots.pool.pool import Pool
from eligo.shots.training.task import means_of, values_over
from eligo.vqa import vqa_accuracy

LEARNED, NEAREST = "learned", "knn"
_HEALTHY = (0.8, 1.5)


def ranking(deployed: Deployed, records: Sequence[Record]) -> dict[str, Any]:
    """How well the teacher's choices are found again."""
    pool, model = deployed.selector.pool, deployed.selector.model
    examples = [as_example(record, pool, model.config.K) for record in records]
    values = values_over(model, examples, pool)
    found: dict[str, Any] = {"records": len(examples), **means_of(values)}
    if "ndcg" in found:  # where the teacher scored all alike there is no ranking to find
        found["without ndcg"] = int(values["ndcg"].isnan().sum())
    low, high = _HEALTHY
    if not low <= found.get("logits_std", low) <= high:
        found["note"] = f"logits_std is outside {low} to {high}: scores are too flat, or too sharp"
    return found


def answering(
    deployed: Deployed,
    queries: Pool,
    shots: int,
    scorer: Scorer,
    generator: HostGenerator | None = None,
    num_queries: int | None = None,
) -> list[dict[str, Any]]:
    """A row for each selector and number of shots; utility is log-probability over zero shots'."""
    pool = deployed.selector.pool
    asked = [as_query(queries, row) for row in range(len(queries))][:num_queries]
    asked = [query for query in asked if _can_be_scored(scorer, query)]
    baselines: dict[str, Any] = {"random": Random(), NEAREST: KNN()}
    selectors = {name: baseline.fit([], pool) for name, baseline in baselines.items()}
    selectors[LEARNED] = deployed.selector
    picks = {
        name: [
            pool.picked(selector.select(query, shots, candidates=deployed.sampler.names(query)))
            for query in asked
        ]
        for name, selector in selectors.items()
    }
    nothing: list[list[str]] = [[] for _ in asked]
    start = _values(scorer, asked, nothing)
    rows = [_row("none", 0, start, start, asked)]
    if generator is not None:
        rows[0] |= _mean("accuracy", _accuracies(generator, queries, asked, nothing))
    for count in range(1, shots + 1):
        told = {name: [row[:count] for row in chosen] for name, chosen in picks.items()}
        worth = {name: _values(scorer, asked, chosen) for name, chosen in told.items()}
        right = {
            name: _accuracies(generator, queries, asked, chosen)
            for name, chosen in told.items()
            if generator is not None
        }
        for name in selectors:
            row = _row(name, count, worth[name], start, asked)
            if name in right:
                row |= _mean("accuracy", right[name])
            if name == LEARNED:
                measure = right or worth
                row |= _against(measure[LEARNED], measure[NEAREST])
            rows.append(row)
    return rows


def _can_be_scored(scorer: Scorer, query: Query) -> bool:
    try:
        scorer.baseline(query)
    except UnscorableError:
        return False
    return True


def _values(scorer: Scorer, asked: Sequence[Query], picks: Sequence[Sequence[str]]) -> list[float]:
    """Mean log-probability of each answer behind its examples."""
    values = []
    for query, names in zip(asked, picks, strict=True):
        found = scorer.score(query, names[:-1], names[-1:]) if names else scorer.baseline(query)
        values.append(float(found.logprob[0]) / found.num_tokens)
    return values


def _accuracies(
    generator: HostGenerator, queries: Pool, asked: Sequence[Query], picks: Sequence[Sequence[str]]
) -> list[float]:
    said = generator.answers([query.id for query in asked], picks)
    assert queries.payload is not None
    rows = queries.rows([query.id for query in asked]).tolist()
    gold = [answers_of(queries.payload[row]) for row in rows]
    return [vqa_accuracy(*pair) for pair in zip(said, gold, strict=True)]


def _row(
    name: str, shots: int, values: list[float], start: list[float], asked: Sequence[Query]
) -> dict[str, Any]:
    gains = [v - s for v, s in zip(values, start, strict=True)]
    return {"selector": name, "shots": shots, "queries": len(asked), **_mean("utility", gains)}


def _mean(name: str, values: list[float]) -> dict[str, float]:
    return {name: sum(values) / max(1, len(values))}


def _against(mine: list[float], theirs: list[float]) -> dict[str, Any]:
    """The difference to kNN, and whether it is one."""
    if not mine:
        return {}
    mean, low, high = paired_bootstrap([[a - b for a, b in zip(mine, theirs, strict=True)]])
    better = LEARNED if low > 0 else NEAREST if high < 0 else "neither"
    return {f"minus {NEAREST}": mean, "from": low, "to": high, "better": better}
