"""Evaluate a trained selector: against the teacher's choices, and by the host's answers.

Baselines get the same candidates. Every number of shots is reported, as more can hurt; a selector
is called better only where the paired 95 % interval of the difference excludes 0.
"""

from collections.abc import Sequence
from typing import Any

from eligo.config import load_config
from eligo.report.intervals import paired_bootstrap
from eligo.shots import metrics
from eligo.shots.baselines import KNN, Random
from eligo.shots.config import ShotsHostConfig
from eligo.shots.data.items import answers_of
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record, encode_record
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.hosts.scorer import HostScorer, Scorer
from eligo.shots.inference.load import SelectorPipeline
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.overlap import OverlapScorer
from eligo.shots.training.task import mean_metrics, record_metrics
from eligo.vqa import vqa_accuracy

LEARNED, NEAREST = "learned", "knn"


def ranking(pipeline: SelectorPipeline, records: Sequence[Record]) -> dict[str, Any]:
    """Return how well the selector ranks the teacher's choices."""
    pool, model = pipeline.selector.pool, pipeline.learned.model
    encoded = [encode_record(record, pool, model.config.K) for record in records]
    values = record_metrics(model, encoded, pool)
    result: dict[str, Any] = {"records": len(encoded), **mean_metrics(values)}
    if "ndcg" in result:  # undefined if all of the teacher's scores are equal
        result["without ndcg"] = int(values["ndcg"].isnan().sum())
    low, high = metrics.HEALTHY_STD
    if not low <= result.get("logits_std", low) <= high:
        result["note"] = f"logits_std is outside {low} to {high}: scores are too flat, or too sharp"
    return result


def answering(
    pipeline: SelectorPipeline,
    queries: Pool,
    shots: int,
    host: dict[str, Any],
    num_queries: int | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each selector and number of shots.

    Utility is the log-probability of the answer minus that of zero shots; `host` are settings of
    `ShotsHostConfig`. Without a model, answers are compared by words.
    """
    pool = pipeline.selector.pool
    config = load_config(ShotsHostConfig, None, {**host, **pipeline.prompt})
    scorer, generator = _scorer_and_generator(config, pool, queries)
    scored = [queries.query(row) for row in range(len(queries))][:num_queries]
    scored = [query for query in scored if _can_be_scored(scorer, query)]
    selectors: dict[str, PoolSelector] = {
        "random": Random().fit([], pool),
        NEAREST: KNN().fit([], pool),
        LEARNED: pipeline.learned,
    }
    picks = {
        name: [
            pool.picked(selector.select(query, shots, candidates=pipeline.sampler.names(query)))
            for query in scored
        ]
        for name, selector in selectors.items()
    }
    none: list[list[str]] = [[] for _ in scored]
    start = _values(scorer, scored, none)
    rows = [_row("none", 0, start, start)]
    if generator is not None:
        rows[0] |= _mean("accuracy", _accuracies(generator, queries, scored, none))
    for count in range(1, shots + 1):
        prompts = {name: [row[:count] for row in chosen] for name, chosen in picks.items()}
        values = {name: _values(scorer, scored, chosen) for name, chosen in prompts.items()}
        accuracies = {
            name: _accuracies(generator, queries, scored, chosen)
            for name, chosen in prompts.items()
            if generator is not None
        }
        for name in selectors:
            row = _row(name, count, values[name], start)
            if name in accuracies:
                row |= _mean("accuracy", accuracies[name])
            if name == LEARNED:
                measure = accuracies or values
                row |= _against(measure[LEARNED], measure[NEAREST])
            rows.append(row)
    return rows


def _scorer_and_generator(
    config: ShotsHostConfig, pool: Pool, queries: Pool
) -> tuple[Scorer, HostGenerator | None]:
    if config.model is None:
        return OverlapScorer(pool, queries), None
    reader = load_reader(config)
    options: dict[str, Any] = {"placement": config.placement, "batch_size": config.batch_size}
    scorer = HostScorer(reader, pool, queries, **options)
    return scorer, HostGenerator(reader, pool, queries, **options)


def _can_be_scored(scorer: Scorer, query: Query) -> bool:
    try:
        scorer.baseline(query)
    except UnscorableError:
        return False
    return True


def _values(scorer: Scorer, scored: Sequence[Query], picks: Sequence[Sequence[str]]) -> list[float]:
    """Return the mean log-probability of each answer after its examples."""
    values = []
    for query, names in zip(scored, picks, strict=True):
        scores = scorer.score(query, names[:-1], names[-1:]) if names else scorer.baseline(query)
        values.append(float(scores.logprob[0]) / scores.num_tokens)
    return values


def _accuracies(
    generator: HostGenerator, queries: Pool, scored: Sequence[Query], picks: Sequence[Sequence[str]]
) -> list[float]:
    answers = generator.answers([query.id for query in scored], picks)
    assert queries.payload is not None
    rows = queries.rows([query.id for query in scored]).tolist()
    gold = [answers_of(queries.payload[row]) for row in rows]
    return [vqa_accuracy(*pair) for pair in zip(answers, gold, strict=True)]


def _row(name: str, shots: int, values: list[float], start: list[float]) -> dict[str, Any]:
    gains = [v - s for v, s in zip(values, start, strict=True)]
    return {"selector": name, "shots": shots, "queries": len(values), **_mean("utility", gains)}


def _mean(name: str, values: list[float]) -> dict[str, float]:
    return {name: sum(values) / max(1, len(values))}


def _against(learned: list[float], nearest: list[float]) -> dict[str, Any]:
    """Return the difference to kNN, its interval, and which is better."""
    if not learned:
        return {}
    mean, low, high = paired_bootstrap([[a - b for a, b in zip(learned, nearest, strict=True)]])
    better = LEARNED if low > 0 else NEAREST if high < 0 else "neither"
    return {f"minus {NEAREST}": mean, "from": low, "to": high, "better": better}
