"""Teach all queries of a folder, shard by shard, in this process or on Ray."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from eligo.errors import EligoError, InputError
from eligo.io.files import check_folder, clear_unfinished
from eligo.io.interrupts import stopped_with
from eligo.io.locks import one_writer
from eligo.shots.config import TeachConfig
from eligo.shots.data.query import Query
from eligo.shots.hosts.client import check_url
from eligo.shots.hosts.load import load_context, load_processor
from eligo.shots.hosts.prompt import UnscorableError, template_hash
from eligo.shots.hosts.remote import PlainText, RemoteScorer, open_remote
from eligo.shots.hosts.scorer import HostScorer, PoolingScorer, Request, Scorer
from eligo.shots.inference.embed import open_embedded
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler, shuffled
from eligo.shots.teacher.beam_search import num_calls
from eligo.shots.teacher.checks import check_answers, check_lengths, check_turns
from eligo.shots.teacher.shards import (
    DATA,
    FORMAT,
    META,
    PARTS,
    RECORDS,
    URL,
    check_host,
    check_meta,
    check_scoring,
    finish,
    is_finished,
    keep_files,
    mean_difference,
    num_noise,
    shard_files,
    write_shard,
)
from eligo.shots.teacher.teacher import TeacherResult, teach_query, teach_together
from eligo.train import ProgressBar, ShardFailure, map_shards

MakeScorer = Callable[[TeachConfig, Pool, Pool], Scorer]


def teach(config: TeachConfig, make_scorer: MakeScorer | None = None) -> dict[str, Any]:
    """Label the queries; continues where a run with the same settings stopped."""
    check_folder(config.out)
    with one_writer(config.out) as folder:
        return _teach(config, folder, make_scorer or scorer_for)


def _teach(config: TeachConfig, folder: Path, make_scorer: MakeScorer) -> dict[str, Any]:
    pool, queries, about = open_embedded(config.data)
    rows = chosen_rows(queries, config)
    is_local = config.host.model is not None and config.host.url is None
    processor = _processor(config)
    if config.check_data and not (config.out / META).exists():
        check_turns(pool, queries, rows, processor)
        if is_local:
            check_answers(queries, rows, processor, config.host.instruction)
            check_lengths(config, pool, queries, rows, processor, load_context(config.host))
    check_meta(folder, _meta(config, pool, queries, about, processor))
    clear_unfinished(folder)
    shards = range(-(-len(rows) // config.shard_size))
    if (folder / RECORDS).exists() and not (folder / PARTS).exists():
        state = "was finished before"
        return {"records": folder / RECORDS, "state": state, **_about(folder, config)}
    left = [shard for shard in shards if not is_finished(folder, shard)]
    finished = {shard: len(_of_shard(rows, config, shard)) for shard in set(shards) - set(left)}
    bar = ProgressBar("teach", len(rows), sum(finished.values()))

    def on_query(shard: int, done: int) -> None:
        finished[shard] = done
        bar.update(sum(finished.values()))

    def on_shard(done: int) -> None:
        if config.engine == "ray":  # queries of other processes are counted by shards
            bar.update(min(len(rows), bar.start + done * config.shard_size))

    factory = partial(_worker, config, make_scorer, pool, queries, on_query)
    if config.engine == "ray":  # perhaps on other machines, with other working folders
        there = config.replace({"out": folder.absolute()})
        meta = (folder / META).read_bytes()
        factory = partial(_ray_worker, there, make_scorer, pool, queries, meta)
    message = f"stopped; finished queries are kept in {folder}, the same command continues"
    with stopped_with(lambda: message), bar:
        results = map_shards(
            factory,
            left,
            engine=config.engine,
            num_workers=config.num_workers,
            gpus_per_worker=config.gpus_per_worker,
            keep_going=False,
            on_done=on_shard,
            on_result=partial(keep_files, folder),
        )
    assert not any(isinstance(result, ShardFailure) for result in results)
    taught, skipped, failed = finish(folder, len(shards))
    if failed:
        raise EligoError(
            f"{failed} of {len(rows)} queries failed three times, see {folder / 'failed.jsonl'}; "
            "the same command tries them again"
        )
    counts = {"taught": taught, "skipped": skipped}
    return {"records": folder / RECORDS, **counts, **_about(folder, config)}


def _processor(config: TeachConfig) -> Any:
    """What writes prompts; None without a host."""
    if config.host.url is not None:
        check_url(config.host.url)
        return PlainText()
    return None if config.host.model is None else load_processor(config.host)


def _about(folder: Path, config: TeachConfig) -> dict[str, Any]:
    """How many labels are noise, and in which share of examples the beams of a query differ."""
    share = mean_difference(folder)
    differ = {} if share is None else {"examples that differ between beams": share}
    return {"no list better than no examples": num_noise(folder, config.objective), **differ}


def plan(config: TeachConfig, make_scorer: MakeScorer | None = None) -> dict[str, Any]:
    """Estimate the cost of teaching: calls of the host, and hours from a measured sample."""
    pool, queries, _ = open_embedded(config.data)
    rows, sampler = chosen_rows(queries, config), Sampler(pool, config.sampler)
    scorer = (make_scorer or scorer_for)(config, pool, queries)
    asked = _scorable(scorer, (queries.query(row) for row in rows), _window(config, scorer))
    names = [sampler.names(query) for query in asked]
    shots, most = min(config.shots, len(names[0])), len(names[0])
    calls = num_calls(most, config.shots, config.beam)
    seconds, before = 0.0, 1
    for step in range(shots):
        upto = num_calls(most, step + 1, config.beam)
        start = time.perf_counter()
        number = _score_step(scorer, asked, names, step)
        seconds += (time.perf_counter() - start) / number * (upto - before)
        before = upto
    total = calls * len(rows)
    return {
        "queries": len(rows),
        "candidates": most,
        "calls per query": calls,
        "calls": total,
        "hours on this machine, one worker": seconds * len(rows) / 3600,
    }


def _scorable(scorer: Scorer, queries: Iterable[Query], number: int) -> list[Query]:
    """Return the first queries to measure with, after a first call each as warm-up."""
    found: list[Query] = []
    for query in queries:
        try:
            scorer.baseline(query)
        except UnscorableError:
            continue
        found.append(query)
        if len(found) == number:
            break
    if not found:
        raise InputError(
            "no query has an answer that can be scored; give other queries or another host"
        )
    return found


def _score_step(
    scorer: Scorer, queries: Sequence[Query], names: Sequence[Sequence[str]], step: int
) -> int:
    """Score one step of some queries as teaching does; return the number of calls."""
    lists = [[(*own[:step], name) for name in own[step:]] for own in names]
    if isinstance(scorer, PoolingScorer):
        scorer.score_all([Request(*pair) for pair in zip(queries, lists, strict=True)])
    else:
        scorer.score(queries[0], names[0][:step], names[0][step:])
    return sum(map(len, lists))


def chosen_rows(queries: Pool, config: TeachConfig) -> list[int]:
    """Return the rows of the queries to label, in the order of the file."""
    if not len(queries):
        raise InputError(f"{config.data}: holds no queries")
    drawn = shuffled(torch.arange(len(queries)), config.seed, "queries")
    return sorted(drawn[: config.num_queries].tolist())


def scorer_for(config: TeachConfig, pool: Pool, queries: Pool) -> Scorer:
    """Return the scorer of the host, or an `OverlapScorer` without one."""
    if config.host.url is not None:
        return RemoteScorer(
            open_remote(config.host), pool, queries, placement=config.host.placement
        )
    if config.host.model is None:
        from eligo.shots.teacher.overlap import OverlapScorer

        if any("image" in payload for payload in queries.payload or ()):
            raise InputError("host.model: questions about images need a host; name one")
        return OverlapScorer(pool, queries)
    from eligo.shots.hosts.load import load_reader

    return HostScorer(
        load_reader(config.host), pool, queries,
        placement=config.host.placement, batch_tokens=config.host.batch_tokens,
        batch_size=config.host.batch_size,
    )  # fmt: skip


def _ray_worker(
    config: TeachConfig, make_scorer: MakeScorer, pool: Pool, queries: Pool, meta: bytes
) -> Callable[[int], dict[str, bytes]]:
    """The same in a process of Ray; without a shared folder it returns what it would write."""
    path = config.out / META
    if path.is_file() and path.read_bytes() == meta:
        return _worker(config, make_scorer, pool, queries)
    own = TemporaryDirectory(prefix="eligo-")
    run = _worker(config.replace({"out": Path(own.name)}), make_scorer, pool, queries)

    def run_there(shard: int) -> dict[str, bytes]:
        run(shard)
        return shard_files(Path(own.name), shard)

    return run_there


def _worker(
    config: TeachConfig,
    make_scorer: MakeScorer,
    pool: Pool,
    queries: Pool,
    on_query: Callable[[int, int], None] | None = None,
) -> Callable[[int], dict[str, bytes]]:
    """Called once in every worker; loads the host."""
    rows, sampler = chosen_rows(queries, config), Sampler(pool, config.sampler)
    scorer = make_scorer(config, pool, queries)
    if isinstance(scorer, HostScorer):
        check_host(Path(config.out), scorer.reader.model)
    elif isinstance(scorer, RemoteScorer):
        check_scoring(Path(config.out), scorer.scoring)
    settings: dict[str, Any] = {
        "shots": config.shots, "beam": config.beam, "objective": config.objective,
        "diversity": config.beam_diversity,
    }  # fmt: skip

    def teach_some(some: Sequence[Query]) -> Sequence[TeacherResult | Exception]:
        names = [sampler.names(query) for query in some]
        if isinstance(scorer, PoolingScorer):
            return teach_together(some, names, scorer, **settings)
        try:
            return [teach_query(some[0], names[0], scorer, **settings)]
        except UnscorableError as error:
            return [error]

    def run(shard: int) -> dict[str, bytes]:
        some = [queries.query(row) for row in _of_shard(rows, config, shard)]
        write_shard(
            Path(config.out), shard, some, teach_some, window=_window(config, scorer),
            on_done=None if on_query is None else partial(on_query, shard),
        )  # fmt: skip
        return {}

    return run


def _of_shard(rows: Sequence[int], config: TeachConfig, shard: int) -> Sequence[int]:
    return rows[shard * config.shard_size : (shard + 1) * config.shard_size]


def _window(config: TeachConfig, scorer: Scorer) -> int:
    """How many queries are taught together; depends on the settings and the device only."""
    if not isinstance(scorer, PoolingScorer):
        return 1
    calls = num_calls(config.sampler.num_candidates, config.shots, config.beam)
    return max(1, scorer.calls_together // calls)


def _meta(
    config: TeachConfig, pool: Pool, queries: Pool, about: dict[str, Any], processor: Any
) -> dict[str, Any]:
    host = config.host
    template = "overlap" if processor is None else template_hash(processor, host.instruction)
    return {
        "format": FORMAT,
        "pool": pool.content_hash,
        "queries": queries.content_hash,
        "sampler": config.sampler.model_dump(mode="json"),
        "template": template,
        "instruction": host.instruction,
        "host": host.model,
        URL: host.url,
        "dtype": host.dtype,
        "objective": config.objective,
        "placement": host.placement,
        "shots": config.shots,
        "beam": config.beam,
        "beam_diversity": config.beam_diversity,
        "num_queries": config.num_queries,
        "shard_size": config.shard_size,
        "seed": config.seed,
        "embed": about,
        DATA: str(config.data),
    }
