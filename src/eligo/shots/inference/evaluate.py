"""Evaluate a selector: against the teacher's choices, and by the host's answers.

Simple selectors choose from the whole pool; the evaluated one chooses as `predict` does. Every
number has a 95 % interval, and so has the lead of the evaluated selector, query by query; queries
of one group are resampled together.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eligo.config import load_config
from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.files import write_text
from eligo.report.intervals import bootstrap_means
from eligo.shots import metrics
from eligo.shots.baselines import BM25, DPP, KNN, MMR, Random, ZeroShot
from eligo.shots.config import ShotsHostConfig
from eligo.shots.data.items import answers_of
from eligo.shots.data.query import Query
from eligo.shots.data.records import Record, encode_record
from eligo.shots.hosts.generator import Generator, HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.hosts.remote import RemoteGenerator, RemoteScorer, open_remote
from eligo.shots.hosts.scorer import HostScorer, ListScorer, PoolingScorer, Request, Scores
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.inference.load import SelectorPipeline
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.overlap import OverlapScorer
from eligo.shots.training.task import mean_metrics, record_metrics
from eligo.train import ProgressBar
from eligo.vqa import vqa_accuracy

SELECTOR = "selector"
"""Name of the evaluated selector in tables."""
LEAD = ("lead", "lead from", "lead to")
"""Columns: lead of the evaluated selector over the row, with its interval."""
_NONE = "none"

Lists = dict[tuple[str, int], list[list[str]]]
"""By name of a selector and number of shots: the examples of every query."""


@dataclass(frozen=True, eq=False)
class Answered:
    """Log-probabilities and answers of every query after each selector's examples."""

    queries: list[Query]
    lists: Lists
    logprobs: dict[tuple[str, int], list[float]]
    """Mean over the tokens of the right answer."""
    answers: dict[tuple[str, int], list[str]]
    """Empty without a host."""
    accuracies: dict[tuple[str, int], list[float]]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return a row for each number of shots and selector, in one table for each measure."""
        tables = {"log-probability": self._table(self.logprobs)}
        return {**tables, "accuracy": self._table(self.accuracies)} if self.accuracies else tables

    def _table(self, values: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
        if not self.queries:
            return []
        groups = [query.group or query.id for query in self.queries]
        keys = list(values)
        leads = [
            [a - b for a, b in zip(values[SELECTOR, _against(keys, key)], values[key], strict=True)]
            for key in keys
        ]
        columns = [[values[key]] for key in keys] + [[lead] for lead in leads]
        found = bootstrap_means(columns, groups=groups)
        rows = []
        for key, own, lead in zip(keys, found, found[len(keys) :], strict=False):
            row: dict[str, Any] = {"shots": key[1], "examples": key[0]}
            row |= dict(zip(("mean", "from", "to"), own, strict=True))
            if key[0] != SELECTOR:
                row |= dict(zip(LEAD, lead, strict=True))
            rows.append(row)
        return rows

    def save(self, path: Path) -> None:
        """Write a JSON line for each query, number of shots and selector."""
        lines = []
        for row, query in enumerate(self.queries):
            for (name, shots), lists in self.lists.items():
                key = (name, shots)
                line = {"id": query.id, "examples": name, "shots": shots, "picks": lists[row]}
                line["logprob"] = self.logprobs[key][row]
                if self.answers:
                    line |= {
                        "answer": self.answers[key][row],
                        "accuracy": self.accuracies[key][row],
                    }
                lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        write_text(path, "".join(lines))


def ranking(pipeline: SelectorPipeline, records: Sequence[Record]) -> dict[str, Any]:
    """Return how well the selector ranks the teacher's choices."""
    selector = pipeline.selector
    if not isinstance(selector, LearnedSelector):
        return {"records": len(records), "note": f"{selector.kind} is not learned: nothing to rank"}
    pool, model = selector.pool, selector.model
    encoded = [encode_record(record, pool, model.config.K) for record in records]
    values = record_metrics(model, encoded, pool)
    result: dict[str, Any] = {"records": len(encoded), **mean_metrics(values)}
    if "ndcg" in result:  # undefined if all of the teacher's scores are equal
        result["without ndcg"] = int(values["ndcg"].isnan().sum())
    low, high = metrics.HEALTHY_STD
    if not model.config.residual and not low <= result.get("logits_std", low) <= high:
        result["note"] = f"logits_std is outside {low} to {high}: scores are too flat, or too sharp"
    return result


def simple_selectors(pool: Pool, balance: float = 0.5) -> dict[str, PoolSelector]:
    """Return the selectors to compare with, over the whole pool, by their names in tables."""
    chosen = {
        "random": Random(), "nearest": KNN(), "mmr": MMR(balance=balance), "dpp": DPP(),
        "bm25": BM25(),
    }  # fmt: skip
    return {name: selector.with_pool(pool) for name, selector in chosen.items()}


def answering(
    pipeline: SelectorPipeline,
    queries: Pool,
    shots: Sequence[int],
    host: dict[str, Any],
    num_queries: int | None = None,
) -> Answered:
    """Let a host answer after examples of the selector and of simple ones.

    `shots` are the numbers of examples; `host` are settings of `ShotsHostConfig`. Without a model,
    answers are compared by words.
    """
    counts = check_shots(shots)
    pool = pipeline.selector.pool
    config = load_config(ShotsHostConfig, None, {**host, **pipeline.prompt})
    scorer, generator = _scorer_and_generator(config, pool, queries)
    scored = queries.queries()[:num_queries]
    scored = [query for query in scored if _can_be_scored(scorer, query)]
    lists: Lists = {(_NONE, 0): ZeroShot().with_pool(pool).picks(scored, 0)}
    others = simple_selectors(pool, pipeline.balance)
    chosen = {name: selector.picks(scored, counts[-1]) for name, selector in others.items()}
    chosen[SELECTOR] = [
        pool.picked(
            pipeline.selector.select(query, counts[-1], candidates=pipeline.sampler.names(query))
        )
        for query in scored
    ]
    for count in counts:
        for name, picks in chosen.items():
            lists[name, count] = [names[:count] for names in picks]
    logprobs = score_lists(scorer, scored, lists)
    answers, accuracies = {}, {}
    if generator is not None:
        answers = answer_lists(generator, scored, lists)
        assert queries.payload is not None
        rows = queries.rows([query.id for query in scored]).tolist()
        known = [answers_of(queries.payload[row]) for row in rows]
        for key, said in answers.items():
            pairs = zip(said, known, strict=True)
            accuracies[key] = [vqa_accuracy(answer, right) for answer, right in pairs]
    return Answered(scored, lists, logprobs, answers, accuracies)


def check_shots(shots: Sequence[int]) -> list[int]:
    """Return the numbers of examples in order; raise for none, and for one below 1."""
    if not shots:
        raise InputError("shots: got no number, expected at least one, such as 1 4")
    return sorted({check_count("shots", count) for count in shots})


def score_lists(
    scorer: ListScorer, queries: Sequence[Query], lists: Lists
) -> dict[tuple[str, int], list[float]]:
    """Return the mean log-probability of each answer; equal lists of a query are scored once."""
    values: dict[tuple[str, int], list[float]] = {key: [] for key in lists}
    requests = [
        Request(query, list(dict.fromkeys(tuple(lists[key][row]) for key in lists)))
        for row, query in _rows(queries)
    ]
    together = scorer.calls_together if isinstance(scorer, PoolingScorer) else 1
    size = max(1, together // max(1, len(lists)))
    with ProgressBar("score", len(queries)) as bar:
        for start in range(0, len(requests), size):
            part = requests[start : start + size]
            for row, scores in enumerate(_scored(scorer, part), start):
                means = (scores.logprob / scores.num_tokens).tolist()
                found = dict(zip(requests[row].lists, means, strict=True))
                for key in lists:
                    values[key].append(found[tuple(lists[key][row])])
            bar.update(start + len(part))
    return values


def _scored(scorer: ListScorer, requests: Sequence[Request]) -> list[Scores]:
    """The scores of some queries; raises for an answer that cannot be scored."""
    if not isinstance(scorer, PoolingScorer):
        return [scorer.score_lists(*request) for request in requests]
    found = scorer.score_all(requests)
    for one in found:
        if isinstance(one, UnscorableError):
            raise one
    return [one for one in found if isinstance(one, Scores)]


def answer_lists(
    generator: Generator, queries: Sequence[Query], lists: Lists
) -> dict[tuple[str, int], list[str]]:
    """Return the host's answers; equal lists of a query are answered once."""
    pairs = [(query.id, tuple(lists[key][row])) for key in lists for row, query in _rows(queries)]
    # By length: a batch is padded to its longest prompt.
    unique = sorted(dict.fromkeys(pairs), key=lambda pair: len(pair[1]))
    found: dict[tuple[str, tuple[str, ...]], str] = {}
    size = generator.answers_together
    with ProgressBar("answer", len(unique)) as bar:
        for start in range(0, len(unique), size):
            part = unique[start : start + size]
            said = generator.answers([name for name, _ in part], [names for _, names in part])
            found |= dict(zip(part, said, strict=True))
            bar.update(len(found))
    return {
        key: [found[query.id, tuple(lists[key][row])] for row, query in _rows(queries)]
        for key in lists
    }


def _rows(queries: Sequence[Query]) -> Iterable[tuple[int, Query]]:
    return enumerate(queries)


def _against(keys: Sequence[tuple[str, int]], key: tuple[str, int]) -> int:
    """Return the number of shots of the selector that a row is compared with."""
    return key[1] or min(shots for name, shots in keys if name == SELECTOR)


def _scorer_and_generator(
    config: ShotsHostConfig, pool: Pool, queries: Pool
) -> tuple[ListScorer, Generator | None]:
    if config.url is not None:
        host = open_remote(config)
        where: dict[str, Any] = {"placement": config.placement}
        return (
            RemoteScorer(host, pool, queries, **where),
            RemoteGenerator(host, pool, queries, **where),
        )
    if config.model is None:
        return OverlapScorer(pool, queries), None
    reader = load_reader(config)
    options = config.model_dump(include={"placement", "batch_tokens", "batch_size"})
    scorer = HostScorer(reader, pool, queries, **options)
    return scorer, HostGenerator(reader, pool, queries, **options)


def _can_be_scored(scorer: ListScorer, query: Query) -> bool:
    if isinstance(scorer, PoolingScorer):  # without a call of the host
        return isinstance(scorer.score_all([Request(query, [])])[0], Scores)
    try:
        scorer.baseline(query)
    except UnscorableError:
        return False
    return True
