"""`predict`: choose examples for a question, with scores and reasons; optionally answer it."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch.nn import functional as F

from eligo.config.bounds import check_count
from eligo.errors import InputError
from eligo.explorer.folder import save_prediction
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.images import ImageLike, as_image
from eligo.io.files import write_text
from eligo.pretrained.chat import place_image
from eligo.selection import Selection
from eligo.shots.data.items import image_group
from eligo.shots.data.query import ONLY, Embeddings, Query
from eligo.shots.inference.embed import embed_query
from eligo.shots.inference.encoders import GIVEN, WORDS, Encoder, open_encoder
from eligo.shots.inference.learned_selector import LearnedSelector, Option
from eligo.shots.inference.load import (
    SelectorPipeline,
    default_shots,
    load_pipeline,
    open_generator,
)
from eligo.shots.inference.record import among_candidates, candidate_pictures, record
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.pool.pool import Pool
from eligo.shots.selector import PoolSelector

_SAME = 0.99  # minimum cosine of vectors of the same text, computed on two devices
_NOTE = "Scores are those of the first step; the score of a pick at its own step is in its note."
_log = logging.getLogger("eligo.shots")


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
    vector: Embeddings | None = None,
    host: str | None = None,
    url: str | None = None,
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
        vector: Instead of an encoder, the question's own vector (or that of each view), of torch or
            NumPy.
        host: Folder or hub name of the model that answers.
        url: Address of an OpenAI-compatible server that runs the model; `host` is its name there.
        device: Where encoder and host run: auto, cpu or cuda.
        model_version: Version that the selector must have (v0 to v3); `selector` may then also be a
            file of weights (.pth) of the published designs' programs.
    """
    if image is not None:
        question = place_image(question, "question")
    if not question.strip():
        raise InputError("question: is empty")
    if url is not None and host is None:
        raise InputError("url: also name the model that the server runs (host)")
    with _image_file(image) as path:
        pipeline = load_pipeline(
            selector, shots,
            encoder=GIVEN if encoder is None and vector is not None else encoder,
            num_candidates=num_candidates, model_version=model_version,
        )  # fmt: skip
        pool = pipeline.selector.pool
        if vector is not None:
            query = _given(pool, question, path, group, vector)
        else:
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
            answer = _answer(pipeline, host, device, url, question, path, picks)
        picture = None if path is None else as_image(path)
    return ShotsPrediction(question, names, chosen, answer, host, picture, pipeline, selection)


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


def _given(
    pool: Pool, question: str, image: str | None, group: str | None, vector: Embeddings
) -> Query:
    """Return the query of a question with a vector of its own."""
    views = vector if isinstance(vector, Mapping) else dict.fromkeys(list(pool.views)[:1], vector)
    query = Query(_id(question), views, group or (image and image_group(image)), text=question)
    got, expected = (
        {name: view.shape[-1] for name, view in sorted(part.views.items())}
        for part in (query, pool)
    )
    if got != expected:
        raise InputError(f"vector: got views (and widths) {got}, expected the examples' {expected}")
    return query


def _id(question: str) -> str:
    return f"question: {question}"


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
    if encoder == GIVEN:
        raise InputError(
            "question: has no vector, and the examples have vectors of a file, not of an encoder; "
            "give its vector (--vectors FILE), or its encoder, or embed questions as --queries and "
            "use predict --data"
        )
    encoder = open_encoder(encoder, device) if isinstance(encoder, str) else encoder
    check_encoder(pipeline, encoder)
    query = embed_query(encoder, _id(question), question, image, group)
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
    url: str | None,
    question: str,
    image: str | None,
    picks: Sequence[str],
) -> str:
    """Return the host's answer after the picked examples; the question needs no vector here."""
    payload = {"question": question, "answer": "", "image": image}
    queries = Pool(["question"], torch.ones(1, 1), payload=[payload])
    generator = open_generator(pipeline, pipeline.selector.pool, queries, model, device, url)
    return generator.answer("question", picks)
