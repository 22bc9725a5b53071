"""`predict`: choose examples for a question, with scores and reasons; optionally answer it."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch.nn import functional as F

from eligo.config import load_config
from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.explorer.folder import save_prediction
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.images import ImageLike, as_image
from eligo.io.files import write_text
from eligo.io.reading import read_object, reading
from eligo.pretrained.chat import place_image
from eligo.pretrained.load import shipped_models
from eligo.selection import Selection
from eligo.shots.baselines import BM25, DPP, KNN, MMR, Random, ZeroShot
from eligo.shots.config import NAMED, PointerConfig, SamplerConfig, ShotsHostConfig
from eligo.shots.data.pickles import is_pickle
from eligo.shots.data.query import ONLY, Query
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.hosts.load import load_reader
from eligo.shots.inference.embed import CandidateText, embed_query, open_embedded
from eligo.shots.inference.encoders import WORDS, Encoder, open_encoder
from eligo.shots.inference.learned_selector import LearnedSelector, Option
from eligo.shots.inference.record import among_candidates, candidate_pictures, record
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.model.pretrained import FILE, find_pointer, import_pointer, load_pointer
from eligo.shots.pool.pool import Pool
from eligo.shots.pool.sampler import Sampler
from eligo.shots.selector import ABOUT, INNER, PoolSelector, load_selector
from eligo.shots.training.train import PIPELINE

TRAINING_FREE: dict[str, Callable[[], PoolSelector]] = {
    "knn": KNN,
    "mmr": lambda: MMR(balance=0.5),
    "dpp": DPP,
    "bm25": BM25,
    "random": Random,
    "zero_shot": ZeroShot,
}
"""Selectors that need no training, by name."""
_SAME = 0.99  # minimum cosine of vectors of the same text, computed on two devices
_NOTE = "Scores are those of the first step; the score of a pick at its own step is in its note."
_log = logging.getLogger("eligo.shots")


@dataclass(frozen=True, eq=False)
class SelectorPipeline:
    """A selector, the sampler of its candidates, and the encoder of its queries."""

    selector: PoolSelector
    sampler: Sampler
    encoder: str | Encoder
    prompt: dict[str, str]
    """How the teacher wrote prompts: placement, instruction."""
    candidate_text: CandidateText = "question_answer"
    """Which text of an example was embedded."""

    @property
    def learned(self) -> LearnedSelector:
        """The selector, if it is a learned one."""
        if not isinstance(self.selector, LearnedSelector):
            raise InputError(f"selector: is a {self.selector.kind}, expected a learned selector")
        return self.selector

    def describe_candidates(self, count: int) -> str:
        """Describe how many examples of the pool were candidates, and how they were drawn."""
        size = len(self.selector.pool)
        if count == size:
            return f"all {size} examples"
        return f"{count} of {size} examples, drawn by the sampler {self.sampler.config.kind}"


@dataclass(frozen=True, eq=False)
class ShotsPrediction:
    """The examples chosen for a question."""

    question: str
    candidates: list[str]
    """Ids of the examples that could be chosen."""
    chosen: list[dict[str, Any]]
    """A row for each pick: its id, score and text; of a learned selector also its probability, the
    next best example and why that was not taken."""
    answer: str | None
    """The host's answer, if there is a host."""
    host: str | None
    picture: Image.Image | None
    pipeline: SelectorPipeline
    pool_selection: Selection
    """The selection over the whole pool."""

    @property
    def selection(self) -> Selection:
        """The selection over the candidates."""
        rows = self.pipeline.selector.pool.rows(self.candidates).tolist()
        return among_candidates(self.pool_selection, rows)

    def summary(self) -> dict[str, Any]:
        """Return picks, candidates and answer as plain data."""
        result: dict[str, Any] = {
            "chosen": self.chosen,
            "among": self.pipeline.describe_candidates(len(self.candidates)),
        }
        return result if self.answer is None else {**result, "answer": self.answer}

    def record(self) -> ExplorerRecord:
        """Return a record for the explorer."""
        selector, names = self.pipeline.selector, self.candidates
        learned = isinstance(selector, LearnedSelector)
        name = f"pointer {selector.model.config.version}" if learned else selector.kind
        answers = () if self.answer is None else (Answer(Path(str(self.host)).name, self.answer),)
        counts = f"{len(selector.pool)} > {len(names)} > {len(self.chosen)} chosen"
        return record(
            self.question,
            selector.pool,
            names,
            {name: self.pool_selection},
            picture=self.picture,
            pictures=candidate_pictures(selector.pool, names),
            notes=_notes(self.chosen),
            answers=answers,
            cost={"candidates": counts},
            note=_NOTE if learned else "",
        )

    def save(self, folder: str | Path) -> Path:
        """Write result.json and a record for `eligo explore`; return the folder."""
        folder = Path(folder)
        write_text(folder / "result.json", json.dumps(self.summary(), indent=1) + "\n")
        save_prediction(self.record(), folder)
        return folder


def predict(
    question: str,
    image: ImageLike | None = None,
    *,
    selector: str | Path | PoolSelector | PointerSelector,
    shots: str | Path | Pool | None = None,
    num_shots: int | None = None,
    num_candidates: int | None = None,
    group: str | None = None,
    encoder: str | Encoder | None = None,
    host: str | None = None,
    device: str = "auto",
    model_version: str | None = None,
) -> ShotsPrediction:
    """Choose examples for a question, and let a host answer it if one is given.

    Args:
        question: The question.
        image: The image that the question is about, if the examples have images.
        selector: The folder of a run, a selector or a model; the name of a shipped model or of a
            training-free selector (`TRAINING_FREE`); or a loaded selector or model.
        shots: The examples to choose from: a folder of `eligo shots embed`, or a pool; by default
            those that the selector was saved with.
        num_shots: Number of examples; by default as many as the selector was trained for, or 6.
        num_candidates: Number of examples to choose from; by default as in training, or all.
        group: Leave out examples of this group; by default those on the same image file.
        encoder: Encoder of the question, where neither selector nor shots name it.
        host: Folder or hub name of the model that answers.
        device: Where encoder and host run: auto, cpu or cuda.
        model_version: Version that the selector must have (v0 to v3); `selector` may then also be a
            file of weights (.pth) of the published designs' programs.
    """
    if image is not None:
        question = place_image(question, "question")
    if not question.strip():
        raise InputError("question: is empty")
    with _image_file(image) as path:
        pipeline = load_pipeline(
            selector, shots,
            encoder=encoder, num_candidates=num_candidates, model_version=model_version,
        )  # fmt: skip
        pool = pipeline.selector.pool
        query = _embed(pipeline, question, path, group, device)
        names = pipeline.sampler.names(query)
        count = default_shots(pipeline.selector) if num_shots is None else num_shots
        check_count("num_shots", count)
        if count > len(names):
            _log.warning(
                "num_shots: got %d, but there are only %d candidates (%s); at most %d are chosen",
                count, len(names), pipeline.describe_candidates(len(names)), len(names),
            )  # fmt: skip
        if isinstance(pipeline.selector, LearnedSelector):
            steps = pipeline.selector.alternatives(query, count, candidates=names)
            selection = pipeline.selector.select(query, len(steps), candidates=names)
            chosen = explain(pool, query, steps)
        else:
            selection = pipeline.selector.select(query, count, candidates=names)
            chosen = [
                {"pick": number, "id": pool.ids[row], "score": score, "says": _text(pool, row)}
                for number, (row, score) in enumerate(scored_rows(selection), start=1)
            ]
        answer = None
        if host is not None:
            picks = [row["id"] for row in chosen]
            answer = _answer(pipeline, host, device, question, path, picks)
        picture = None if path is None else as_image(path)
    return ShotsPrediction(question, names, chosen, answer, host, picture, pipeline, selection)


def load_pipeline(
    selector: str | Path | PoolSelector | PointerSelector,
    shots: str | Path | Pool | None = None,
    *,
    encoder: str | Encoder | None = None,
    num_candidates: int | None = None,
    model_version: str | None = None,
) -> SelectorPipeline:
    """Load a selector with its sampler and encoder; the arguments are those of `predict`."""
    about: dict[str, Any] = {}
    if isinstance(selector, str | Path):
        about = _read_pipeline(Path(selector))
    embed = about.get("embed", {})
    pool = shots if isinstance(shots, Pool) else None
    if isinstance(shots, str | Path):
        pool, _, described = open_embedded(Path(shots))
        if embed and embed["encoder"] != described["encoder"]:
            raise InputError(
                f"{shots}: was embedded by {described['encoder']}, but the selector was trained on "
                f"vectors of {embed['encoder']}; embed the examples with that encoder"
            )
        embed = described
    loaded = _load_selector(selector, pool, model_version)
    _check_version(selector, loaded, model_version)
    encoder = encoder or embed.get("encoder")
    if encoder is None:
        raise InputError(
            f"encoder: {selector} names none; give the encoder that embedded the examples: words, "
            "or the folder or hub name of a CLIP or SigLIP model"
        )
    config = about.get("sampler") or SamplerConfig(num_candidates=max(1, len(loaded.pool)))
    if num_candidates is not None:
        config = config.replace({"num_candidates": num_candidates})
    candidate_text = embed.get("candidate_text", "question_answer")
    sampler = Sampler(loaded.pool, config)
    return SelectorPipeline(loaded, sampler, encoder, about.get("prompt", {}), candidate_text)


def is_bare(selector: str | Path | PoolSelector | PointerSelector) -> bool:
    """Return whether a selector is a model or a method without examples of its own."""
    if isinstance(selector, str | Path):
        path = Path(selector)
        is_model = is_pickle(path) or find_pointer(path) is not None
        return _is_named(str(selector)) or (is_model and not _holds_examples(path))
    return isinstance(selector, PointerSelector) or selector._pool is None


def _is_named(name: str) -> bool:
    return name in TRAINING_FREE or name in shipped_models(f"{FILE}.safetensors")


def _holds_examples(folder: Path) -> bool:
    return any((path / ABOUT).is_file() for path in (folder, folder / INNER))


def check_examples(pipeline: SelectorPipeline, pool: Pool, where: str | Path) -> None:
    """Raise if the examples of a folder are not those that the selector chooses from."""
    expected = pipeline.selector.pool.content_hash
    if pool.content_hash != expected:
        raise InputError(
            f"{where}: its examples have hash {pool.content_hash}, but the selector was trained on "
            f"{expected}, or is used with those (--embedded); embed the same examples in the same "
            "way"
        )


def _read_pipeline(folder: Path) -> dict[str, Any]:
    """Read sampler, embedding and prompt of a run of `eligo shots train`; empty for others."""
    inner = folder / INNER if (folder / INNER).is_dir() else folder
    if not (inner / PIPELINE).is_file():
        return {}
    about = read_object(inner / PIPELINE, "`eligo shots train`")
    where = f"{folder}: holds no trained selector; {inner / PIPELINE}"
    with reading(where, "sampler, embed and prompt, as `eligo shots train` writes them"):
        pipeline = {
            "sampler": SamplerConfig(**about["sampler"]),
            "embed": {**about["embed"], "encoder": str(about["embed"]["encoder"])},
            "prompt": dict(about["prompt"]),
        }
    held_out = about.get("held_out") or {}  # absent in older runs
    if held_out.get("outcome") == "no better":
        _log.warning("%s: %s", folder, held_out["remark"])
    return pipeline


def _load_selector(
    selector: str | Path | PoolSelector | PointerSelector, pool: Pool | None, version: str | None
) -> PoolSelector:
    """Load a selector, to choose from `pool` if one is given."""
    if isinstance(selector, str | Path):
        selector = _read_selector(str(selector), pool is not None, version)
    if isinstance(selector, PoolSelector):
        loaded = selector if pool is None else selector.with_pool(pool)
    elif pool is None:
        raise InputError("shots: a model has no examples of its own; give a folder or a pool")
    else:
        loaded = LearnedSelector.of(selector, pool)
    if isinstance(loaded, LearnedSelector):
        expected, got = loaded.model.config.d_model, loaded.pool.vectors.shape[1]
        if expected != got:
            raise InputError(
                f"selector: reads vectors of width {expected}, but those of the examples have "
                f"width {got}; embed them with the encoder that it was trained on"
            )
    return loaded


def _read_selector(
    name: str, has_pool: bool, version: str | None
) -> PoolSelector | PointerSelector:
    path = Path(name)
    if is_pickle(path) and version is None:
        raise InputError(
            f"{path}: is a pickle that does not name the version of its model; give "
            f"--model_version v1, v2 or v3, or convert it first: `eligo shots convert {path} "
            f"--version v1 --out {path.with_suffix('')}`"
        )
    if is_pickle(path) and not path.is_file():
        raise InputError(f"{path}: there is no such file")
    has_examples = _holds_examples(path) and not _is_named(name)
    if not has_pool and not has_examples:
        if path.is_dir() and not is_bare(name):
            raise InputError(
                f"{name}: holds no trained selector (no {PIPELINE}); `eligo shots train` writes one"
            )
        why = "comes without examples to choose from" if is_bare(name) else "is not a folder"
        raise InputError(
            f"{name}: {why}; expected the folder of a run of `eligo shots train`, which learns "
            "from your own examples, or give them: --embedded FOLDER of `eligo shots embed` (in "
            "Python, `shots`)"
        )
    if name in TRAINING_FREE:
        return TRAINING_FREE[name]()
    if has_examples:
        return load_selector(path)
    if is_pickle(path) and version is not None:
        return import_pointer(path, NAMED[version])
    return load_pointer(name)


def _check_version(selector: Any, loaded: PoolSelector, version: str | None) -> None:
    if version is None:
        return
    is_learned = isinstance(loaded, LearnedSelector)
    got = loaded.model.config.version if is_learned else loaded.kind
    if got != version:
        name = selector if isinstance(selector, str | Path) else "the selector"
        raise InputError(f"model_version: got {version}, but {name} is {got}; give that, or none")


def default_shots(selector: PoolSelector) -> int:
    """Return the number of examples that a selector was trained for, or 6."""
    if isinstance(selector, LearnedSelector):
        return selector.model.config.shot_num
    return PointerConfig.model_fields["shot_num"].default


@contextmanager
def _image_file(image: ImageLike | None) -> Iterator[str | None]:
    """Yield the path of an image; encoders and hosts read files."""
    if image is None:
        yield None
        return
    opened = as_image(image)
    if isinstance(image, str | Path):
        yield str(image)
        return
    with TemporaryDirectory(prefix="eligo-") as folder:
        path = Path(folder) / "image.png"
        opened.save(path)
        yield str(path)


def _embed(
    pipeline: SelectorPipeline, question: str, image: str | None, group: str | None, device: str
) -> Query:
    if image is not None and pipeline.encoder == WORDS:
        raise InputError(
            "image: the examples were embedded from words alone; leave out the image, or embed "
            "again with `eligo shots embed --encoder FOLDER` (of a CLIP or SigLIP model) and train "
            "again"
        )
    encoder = pipeline.encoder
    encoder = open_encoder(encoder, device) if isinstance(encoder, str) else encoder
    check_encoder(pipeline, encoder)
    query = embed_query(encoder, f"question: {question}", question, image, group)
    views = pipeline.selector.pool.views
    if ONLY in views:
        raise InputError(
            "shots: the pool has vectors without a name, so a question cannot be compared with "
            'them; name them: Pool(ids, {"text": vectors}), or {"image": ..., "text": ...}'
        )
    if set(query.views) != set(views):
        got = "no image" if image is None else "an image"
        raise InputError(f"image: got {got}, but the examples have {', '.join(views)}")
    return query


def check_encoder(pipeline: SelectorPipeline, encoder: Encoder) -> None:
    """Raise if the encoder embeds the first example differently from the pool.

    Another model under the same name, or another tokenizer, would embed queries in another space.
    Pools that were not made by `embed` have no texts to compare.
    """
    pool = pipeline.selector.pool
    first = pool.payload[0] if pool.payload else None
    if not isinstance(first, Mapping) or not {"question", "answer"} <= set(first):
        return
    words = [first["question"]]
    words += [first["answer"]] if pipeline.candidate_text == "question_answer" else []
    embedded = {"text": encoder.texts([" ".join(words)])[0]}
    image = first.get("image")
    if image is not None and "image" in pool.views and Path(image).is_file():
        embedded["image"] = encoder.images([image])[0]
    for view, vector in embedded.items():
        if view not in pool.views:
            continue
        stored = pool.views[view][0].float()
        same = len(vector) == len(stored)
        if not same or F.cosine_similarity(vector, stored, dim=0) < _SAME:
            raise InputError(
                f"encoder: {pipeline.encoder} gives the {view} of example {pool.ids[0]!r} another "
                "vector than the pool has: it is another model, or has another tokenizer; use the "
                "original one, or embed, teach and train again"
            )


def explain(pool: Pool, query: Query, steps: Sequence[list[Option]]) -> list[dict[str, Any]]:
    """Return a row for each pick: its score, its text, and why the next best was not taken."""
    picks = [step[0].id for step in steps]
    return [
        {
            "pick": number + 1,
            "id": step[0].id,
            "score": step[0].score,
            "probability": step[0].probability,
            "says": _text(pool, int(pool.rows([step[0].id])[0])),
            "next best": step[1].id if len(step) > 1 else None,
            "why not": _why_not(pool, query, picks, number, step),
        }
        for number, step in enumerate(steps)
    ]


def _why_not(pool: Pool, query: Query, picks: list[str], number: int, step: list[Option]) -> str:
    """Return the reasons against the second option of a step."""
    if len(step) < 2:
        return "there was no other"
    pick, other = step[:2]
    vectors = pool.vectors[pool.rows([pick.id, other.id])]
    near, far = (vectors @ query.vector).tolist()
    score = f"score {other.score:.3g} to {pick.score:.3g}"
    if other.score == pick.score:
        score = f"the same score, {pick.score:.3g}, but later in the pool"
    parts = [score, f"cosine with the question {far:.2f} to {near:.2f}"]
    if number:
        cosines = pool.vectors[pool.rows(picks[:number])] @ vectors[1]
        nearest = int(cosines.argmax())
        parts.append(f"{float(cosines[nearest]):.2f} like {picks[nearest]}, picked before")
    if other.id in picks[number + 1 :]:
        parts.append(f"taken as pick {picks.index(other.id) + 1}")
    return "; ".join(parts)


def _notes(chosen: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return notes by id: the score of a pick, or why a next best example was not taken."""
    notes: dict[str, str] = {}
    for row in chosen:
        if row.get("next best") is not None:  # the last step wins
            notes[row["next best"]] = f"next best for pick {row['pick']}: {row['why not']}"
    for row in chosen:
        probability = f", probability {row['probability']:.2g}" if "probability" in row else ""
        notes[row["id"]] = f"pick {row['pick']}: score {row['score']:.3g}{probability}"
    return notes


def scored_rows(selection: Selection) -> list[tuple[int, float]]:
    """Return row and score (of the first step) of each pick."""
    return [(row, float(selection.scores[row])) for row in selection.indices.tolist() if row >= 0]


def _text(pool: Pool, row: int) -> str:
    return pool.texts[row] if pool.payload is not None else ""


def _answer(
    pipeline: SelectorPipeline,
    model: str,
    device: str,
    question: str,
    image: str | None,
    picks: Sequence[str],
) -> str:
    """Return the host's answer after the picked examples; the question needs no vector here."""
    payload = {"question": question, "answer": "", "image": image}
    queries = Pool(["question"], torch.ones(1, 1), payload=[payload])
    generator = open_generator(pipeline, pipeline.selector.pool, queries, model, device)
    return generator.answer("question", picks)


def open_generator(
    pipeline: SelectorPipeline,
    pool: Pool,
    queries: Pool,
    model: str,
    device: str,
    batch_size: int = 1,
) -> HostGenerator:
    """Load a host that answers queries after examples of the pool, with prompts as in teaching."""
    settings = {"model": model, "device": device, "batch_size": batch_size, **pipeline.prompt}
    config = load_config(ShotsHostConfig, None, settings)
    return HostGenerator(
        load_reader(config), pool, queries, placement=config.placement, batch_size=batch_size
    )
