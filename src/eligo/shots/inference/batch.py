"""`predict_batch`: choose examples for all queries of a folder, and answer them with a host.

The results are JSON lines, one for each query, appended batch by batch. Beside them,
`<file>.settings.json` says what they depend on: a restart with the same settings continues after
the last whole line, other settings are refused.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.io.files import GrowingFile, check_file, write_text
from eligo.io.interrupts import stopped_with
from eligo.io.json_lines import JsonRow, read_json_lines
from eligo.io.locks import FileLock
from eligo.io.reading import is_special, read_object, reading
from eligo.pretrained.identity import same_weights, sampled_weights
from eligo.report.intervals import paired_bootstrap
from eligo.shots.data.items import answers_of
from eligo.shots.data.query import Query
from eligo.shots.hosts.generator import Generator, HostGenerator
from eligo.shots.hosts.prompt import template_hash
from eligo.shots.hosts.remote import PlainText
from eligo.shots.inference.embed import open_embedded
from eligo.shots.inference.learned_selector import LearnedSelector
from eligo.shots.inference.load import (
    SelectorPipeline,
    check_examples,
    default_shots,
    is_bare,
    load_pipeline,
    open_generator,
)
from eligo.shots.inference.predict import scored_rows
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector
from eligo.shots.teacher.run import check_turns
from eligo.train import ProgressBar
from eligo.vqa import vqa_accuracy

SETTINGS = ".settings.json"
"""Appended to the name of the results' file."""
_FORMAT = 1
_WEIGHTS = "host weights"
_log = logging.getLogger("eligo.shots")


class _Line(JsonRow, extra="allow"):
    id: str
    picks: list[str]
    scores: list[float]
    answer: str | None = None
    accuracy: float | None = None


def predict_batch(
    data: str | Path,
    out: str | Path,
    *,
    selector: str | Path | PoolSelector | PointerSelector,
    shots: str | Path | None = None,
    num_shots: int | None = None,
    num_candidates: int | None = None,
    host: str | None = None,
    url: str | None = None,
    images: str | Path | None = None,
    batch_size: int = 16,
    device: str = "auto",
    model_version: str | None = None,
) -> dict[str, Any]:
    """Choose examples for every query of a folder and write a JSON line for each.

    A line holds `id`, `picks` (ids of examples, in order of choice) and `scores`; with a host also
    its `answer` and the VQA `accuracy` (None for a query without known answers). Returns a summary.

    Args:
        data: Folder of `eligo shots embed`, with the queries, and the examples of the selector.
        out: The file to write to; an unfinished one is continued.
        selector: As in `predict`.
        shots: The folder of examples to choose from, for a selector without examples of its own; by
            default `data`.
        num_shots: Number of examples; by default as many as the selector was trained for, or 6.
        num_candidates: Number of examples to choose from; by default as in training, or all.
        host: Folder or hub name of the model that answers.
        url: Address of an OpenAI-compatible server that runs the model; `host` is its name there.
        images: Folder to find the images in, if they have moved since they were embedded.
        batch_size: Queries that the host answers together.
        device: Where the host runs: auto, cpu or cuda.
        model_version: As in `predict`.
    """
    data, out = Path(data), Path(out)
    check_count("batch_size", batch_size)
    if url is not None and host is None:
        raise InputError("url: also name the model that the server runs (host)")
    _check_out(out)
    pool, queries, about = open_embedded(data)
    if shots is None and is_bare(selector):
        shots = data
    pipeline = load_pipeline(
        selector, shots,
        encoder=about.get("encoder"), num_candidates=num_candidates, model_version=model_version,
    )  # fmt: skip
    check_examples(pipeline, pool, data)
    if not len(queries):
        raise InputError(f"{data}: holds no queries")
    count = default_shots(pipeline.selector) if num_shots is None else num_shots
    check_count("num_shots", count)
    settings = {
        "format": _FORMAT,
        "queries": queries.content_hash,
        "examples": pool.content_hash,
        "selector": _fingerprint(pipeline.selector),
        "shots": count,
        "sampler": pipeline.sampler.config.model_dump(mode="json"),
        "host": host,
        "prompt": pipeline.prompt,
    }
    if images is not None:
        pool, queries = _relocated(pool, queries, Path(images))
    with _one_writer(out):
        file = GrowingFile(out)
        try:
            done = _finished(file, queries, settings)
            left = [row for row, name in enumerate(queries.ids) if name not in done]
            generator = None
            if host is not None and left:
                generator = open_generator(pipeline, pool, queries, host, device, url)
                processor = PlainText()
                if isinstance(generator, HostGenerator):
                    _check_host(out, done, generator, settings)
                    processor = generator.reader.processor
                if not done:
                    _check_turns(pool, queries, processor)
            if not done:
                write_text(_settings_file(out), json.dumps(settings, indent=1) + "\n")
            bar = ProgressBar("predict", len(queries), len(done))
            message = f"stopped; {out} keeps what was finished, the same command continues"
            with stopped_with(lambda: message), bar:
                for start in range(0, len(left), batch_size):
                    rows = left[start : start + batch_size]
                    lines = _predicted(pipeline, queries, rows, count, generator)
                    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
                    file.write(text.encode())
                    file.sync()
                    done |= {line["id"]: line.get("accuracy") for line in lines}
                    bar.update(len(done))
        finally:
            file.close()
    return _summary(out, done)


def _predicted(
    pipeline: SelectorPipeline,
    queries: Pool,
    rows: Sequence[int],
    count: int,
    generator: Generator | None,
) -> list[dict[str, Any]]:
    """Return the lines of some queries."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        query = queries.query(row)
        picks, scores = _picks(pipeline, query, count)
        lines.append({"id": query.id, "picks": picks, "scores": scores})
    if generator is not None:
        picks = [line["picks"] for line in lines]
        answers = generator.answers([line["id"] for line in lines], picks)
        assert queries.payload is not None  # was checked
        for line, row, answer in zip(lines, rows, answers, strict=True):
            known = answers_of(queries.payload[row])
            line |= {"answer": answer, "accuracy": vqa_accuracy(answer, known) if known else None}
    return lines


def _picks(pipeline: SelectorPipeline, query: Query, count: int) -> tuple[list[str], list[float]]:
    """Return picks and their scores, as `predict` does for one question."""
    selector, names = pipeline.selector, pipeline.sampler.names(query)
    if isinstance(selector, LearnedSelector):
        steps = selector.alternatives(query, count, 1, candidates=names)
        return [step[0].id for step in steps], [step[0].score for step in steps]
    selection = selector.select(query, count, candidates=names)
    return selector.pool.picked(selection), [score for _, score in scored_rows(selection)]


# ------------------------------------------------------------------ checks


def _check_out(out: Path) -> None:
    if is_special(out):
        raise InputError(f"{out}: is a pipe, socket or device; expected a file")
    check_file(out)


def _relocated(pool: Pool, queries: Pool, folder: Path) -> tuple[Pool, Pool]:
    """Return examples and queries with the paths of their images in another folder."""
    if not folder.is_dir():
        raise InputError(f"images: {folder} is not a folder; expected the one that holds them")
    if not any(_image_of(item) for part in (pool, queries) for item in part.payload or ()):
        raise InputError("images: neither examples nor queries have any; leave it out")
    pool, queries = (
        replace(part, payload=[_with_image(item, folder) for item in part.payload or ()])
        for part in (pool, queries)
    )
    return pool, queries


def _image_of(payload: Any) -> str | None:
    return payload.get("image") if isinstance(payload, Mapping) else None


def _with_image(payload: Any, folder: Path) -> Any:
    """Look an image up by the longest end of its path that exists in the folder."""
    image = _image_of(payload)
    if image is None:
        return payload
    parts = [part for part in Path(image).parts if part not in (Path(image).anchor, "..")]
    for start in range(len(parts)):
        path = folder.joinpath(*parts[start:])
        if path.is_file():
            return {**payload, "image": str(path)}
    raise InputError(f"images: {folder} has no {parts[-1]}, which was embedded as {image}")


# ------------------------------------------------------------------ files


@contextmanager
def _one_writer(out: Path) -> Iterator[None]:
    """Lock the file; in the end, remove it if nothing was written."""
    path = Path(os.path.realpath(out))
    lock = FileLock.acquire(path)
    if lock is None:
        raise InputError(
            f"{out}: another process is writing it; wait until it has ended, or choose another "
            "--out"
        )
    try:
        yield
    finally:
        lock.release(remove=path.is_file() and not path.stat().st_size)


def _check_turns(pool: Pool, queries: Pool, processor: Any) -> None:
    try:
        check_turns(pool, queries, range(len(queries)), processor)
    except InputError as error:
        moved = "there is no such image" in str(error)
        hint = "; if images have moved, give their folder with --images" if moved else ""
        raise InputError(f"{error}{hint}") from None


def _settings_file(out: Path) -> Path:
    return out.with_name(out.name + SETTINGS)


def _finished(
    file: GrowingFile, queries: Pool, settings: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the accuracy of each finished query by id; drop half a line of a killed process."""
    out = file.path
    written = out.read_bytes()
    if not written:
        return {}
    if not _settings_file(out).is_file():
        raise InputError(
            f"{out}: already exists, and is not of `eligo shots predict --data` (there is no "
            f"{_settings_file(out).name}); choose another --out"
        )
    stored = read_object(_settings_file(out), "`eligo shots predict --data`")
    for key, value in settings.items():
        if stored.get(key) != value:
            raise InputError(
                f"{out}: was started with {key} {stored.get(key)!r}, got {value!r}; choose another "
                "--out, or use the same settings"
            )
    file.cut(written.rfind(b"\n") + 1)
    done: dict[str, float | None] = {}
    for number, line in read_json_lines(out, _Line, unique="id"):
        if line.id not in queries:
            raise InputError(f"{out}:{number}: id: got {line.id!r}, which is none of the queries")
        done[line.id] = line.accuracy
    return done


def _check_host(
    out: Path, done: Mapping[str, Any], generator: HostGenerator, settings: dict[str, Any]
) -> None:
    """Add the host to the settings; refuse one that changed under the same name."""
    reader = generator.reader
    template = template_hash(reader.processor, reader.instruction)
    settings |= {"template": template, _WEIGHTS: sampled_weights(reader.model)}
    if not done:
        return
    stored = read_object(_settings_file(out), "`eligo shots predict --data`")
    with reading(_settings_file(out), "what `eligo shots predict --data` writes"):
        weights = {str(name): float(value) for name, value in stored[_WEIGHTS].items()}
    if stored.get("template") != template or not same_weights(reader.model, weights):
        raise InputError(
            f"{out}: was started with a host of this name with other weights or another chat "
            "template; choose another --out, or give the same host"
        )


def _fingerprint(selector: PoolSelector) -> str:
    """Return the kind of a selector and a hash of its settings and weights."""
    if not isinstance(selector, LearnedSelector):
        return f"{selector.kind} {_hash(selector._settings())}"
    digest = hashlib.sha256(_hash(selector._settings()).encode())
    for module in selector._modules().values():
        for name, tensor in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"{selector.model.config.version} {digest.hexdigest()[:16]}"


def _hash(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _summary(out: Path, done: Mapping[str, float | None]) -> dict[str, Any]:
    summary: dict[str, Any] = {"queries": len(done)}
    known = [value for value in done.values() if value is not None]
    if known:
        accuracy, low, high = paired_bootstrap([known])
        interval = {"accuracy": accuracy, "95 % interval": [low, high]}
        summary |= {"with answers": len(known), **interval}
    return {**summary, "written": out}
