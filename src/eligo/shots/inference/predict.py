"""A trained selector at work: candidates as in training, picks, and why not the next best."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn import functional as F

from eligo.errors import InputError
from eligo.io.reading import read_object, reading
from eligo.pretrained.load import shipped_models
from eligo.shots.data.pickles import refuse_pickle
from eligo.shots.data.query import Query
from eligo.shots.inference.embed import CandidateText
from eligo.shots.inference.encoders import Encoder
from eligo.shots.inference.learned_selector import LearnedSelector, Step
from eligo.shots.model.pretrained import FILE
from eligo.shots.pool.sampler import Sampler
from eligo.shots.pool.sampler_config import SamplerConfig
from eligo.shots.selector import INNER, load_selector
from eligo.shots.training.train import PIPELINE

_SAME = 0.99  # cosine of one text's vectors, made on any device
_log = logging.getLogger("eligo.shots")


@dataclass(frozen=True, eq=False)
class Deployed:
    """A selector with its sampler, and how queries are embedded."""

    selector: LearnedSelector
    sampler: Sampler
    encoder: str
    prompt: dict[str, str]
    """How the teacher wrote prompts: placement, instruction."""
    candidate_text: CandidateText = "question_answer"
    """What of an example was embedded."""

    def steps(self, query: Query, shots: int) -> list[Step]:
        """The picks, each with the next best."""
        return self.selector.alternatives(query, shots, candidates=self.sampler.names(query))

    def looked_at(self, query: Query) -> str:
        """How many examples could have been picked, and who drew them."""
        count, pool = len(self.sampler.names(query)), len(self.selector.pool)
        if count == pool:
            return f"all {pool} examples"
        return f"{count} of {pool} examples, drawn by the sampler {self.sampler.config.kind}"


def open_selector(folder: Path, num_candidates: int | None = None) -> Deployed:
    """Of a run folder, or of the `selector` folder in it; queries get as many candidates as in its
    training, or `num_candidates`."""
    refuse_pickle(folder)
    if not folder.is_dir():
        ours = str(folder) in shipped_models(f"{FILE}.safetensors")
        what = "comes without examples to choose from" if ours else "is no folder"
        raise InputError(
            f"{folder}: {what}; expected the folder of a run of `eligo shots train`, which learns "
            "from your own examples"
        )
    inner = folder / INNER if (folder / INNER).is_dir() else folder
    if not (inner / PIPELINE).is_file():
        raise InputError(
            f"{folder}: holds no trained selector (no {PIPELINE}); `eligo shots train` writes one"
        )
    about = read_object(inner / PIPELINE, "`eligo shots train`")
    where = f"{folder}: holds no trained selector; {inner / PIPELINE}"
    with reading(where, "sampler, embed and prompt, as `eligo shots train` writes them"):
        settings, encoder = SamplerConfig(**about["sampler"]), str(about["embed"]["encoder"])
        prompt = dict(about["prompt"])
        text = about["embed"].get("candidate_text", "question_answer")
    if num_candidates is not None:
        settings = settings.replace({"num_candidates": num_candidates})
    selector = load_selector(inner)
    if not isinstance(selector, LearnedSelector):
        raise InputError(f"{folder}: holds a {selector.kind}, expected a learned selector")
    found = about.get("held_out") or {}  # older runs have none
    if found.get("verdict") == "no better":
        _log.warning("%s: %s", folder, found["remark"])
    return Deployed(selector, Sampler(selector.pool, settings), encoder, prompt, text)


def check_encoder(deployed: Deployed, encoder: Encoder) -> None:
    """Refuse an encoder that does not give the first example the vectors that it was trained with.

    Another model under the same name, or another tokenizer, would embed queries in a space of its
    own. Pools that were not made by `embed` have no texts to compare.
    """
    pool = deployed.selector.pool
    first = pool.payload[0] if pool.payload else None
    if not isinstance(first, Mapping) or not {"question", "answer"} <= set(first):
        return
    words = [first["question"]]
    words += [first["answer"]] if deployed.candidate_text == "question_answer" else []
    now = {"text": encoder.texts([" ".join(words)])[0]}
    image = first.get("image")
    if image is not None and "image" in pool.views and Path(image).is_file():
        now["image"] = encoder.images([image])[0]
    for view, vector in now.items():
        if view not in pool.views:
            continue
        then = pool.views[view][0].float()
        same = len(vector) == len(then)
        if not same or F.cosine_similarity(vector, then, dim=0) < _SAME:
            raise InputError(
                f"encoder: {deployed.encoder} gives the {view} of example {pool.ids[0]!r} another "
                "vector than the selector was trained with: it is another model, or has another "
                "tokenizer; put the former one back, or embed, teach and train again"
            )


def explain(deployed: Deployed, query: Query, steps: Sequence[Step]) -> list[dict[str, Any]]:
    """A row for each pick: its score, what it says, and why the next best was not taken."""
    pool = deployed.selector.pool
    picks = [step[0].id for step in steps]
    rows = []
    for number, step in enumerate(steps):
        pick = step[0]
        row = int(pool.rows([pick.id])[0])
        rows.append(
            {
                "pick": number + 1,
                "id": pick.id,
                "score": pick.score,
                "probability": pick.probability,
                "says": pool.texts[row] if pool.payload is not None else "",
                "next best": step[1].id if len(step) > 1 else None,
                "why not": _why(deployed, query, picks, number, step),
            }
        )
    return rows


def _why(deployed: Deployed, query: Query, picks: list[str], number: int, step: Step) -> str:
    """What speaks against the second of a step."""
    if len(step) < 2:
        return "there was no other"
    pool, (pick, other) = deployed.selector.pool, step[:2]
    vectors = pool.vectors[pool.rows([pick.id, other.id])]
    near, far = (vectors @ query.vector).tolist()
    score = f"score {other.score:.3g} to {pick.score:.3g}"
    if other.score == pick.score:
        score = f"the same score, {pick.score:.3g}, but later in the pool"
    parts = [
        score,
        f"cosine with the question {far:.2f} to {near:.2f}",
    ]
    if number:
        told = pool.vectors[pool.rows(picks[:number])]
        likest = int((told @ vectors[1]).argmax())
        parts.append(f"{float(told[likest] @ vectors[1]):.2f} like {picks[likest]}, picked before")
    if other.id in picks[number + 1 :]:
        parts.append(f"taken as pick {picks.index(other.id) + 1}")
    return "; ".join(parts)
