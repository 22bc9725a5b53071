"""Explorer record of one text and one image: patches kept, words and the patches they match."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.explorer.record import Answer, ExplorerRecord, Grid, Item, Stage
from eligo.patches.inference.predict import PatchCost, PatchPrediction
from eligo.patches.model.explain import PatchExplanation
from eligo.selection import Selection

KIND = "patches"
_LINKED_SHARE = 0.5
_LINKS = (
    "Beside each word is its cosine with its best token; on each patch, its part of that cosine; "
    "marked are the fewest patches that make up half of it. A word without any matched the "
    "image as a whole."
)


@dataclass(frozen=True)
class SearchResult:
    """An image found for a text."""

    name: str
    picture: Image.Image
    score: float
    note: str = ""


def record(
    prediction: PatchPrediction,
    *,
    results: Sequence[SearchResult] = (),
    answers: Sequence[Answer] = (),
    title: str | None = None,
    note: str = "",
) -> ExplorerRecord:
    """Return the record of a prediction.

    `results`: images that a search for the text found, best first; the first is marked as kept.
    """
    explanation = prediction.explanation
    if explanation.heat_map is None:
        raise InputError("record: the patches have no known grid, so they cannot be shown")
    grid = Grid("image", *explanation.heat_map.shape)
    pictures = {"image": prediction.image.convert("RGB")}
    stages = [Stage("patches kept for the text", explanation.sparse.to("cpu"), grid)]
    if explanation.dense is not None:
        stages.append(
            Stage("patches kept for the dense caption", explanation.dense.to("cpu"), grid)
        )
    stages.append(_links(explanation, [row["word"] for row in prediction.words], grid))
    if results:
        names = [f"result {number + 1}" for number in range(len(results))]
        pictures |= {n: hit.picture.convert("RGB") for n, hit in zip(names, results, strict=True)}
        stages.append(_results(results, names))
    return ExplorerRecord(
        title=title or prediction.text,
        kind=KIND,
        query=prediction.text,
        stages=tuple(stages),
        pictures=pictures,
        answers=tuple(answers),
        cost=cost_lines(prediction.cost),
        note=note,
    )


def _links(explanation: PatchExplanation, words: Sequence[str], grid: Grid) -> Stage:
    scores = explanation.word_patches.detach().float().cpu()
    cosines = explanation.word_scores.tolist()
    rows = [f"{word} {cosine:+.2f}" for word, cosine in zip(words, cosines, strict=True)]
    linked = Selection.top_k(scores, _num_linked(scores))
    return Stage("what each word matched", linked, grid, rows=tuple(rows), note=_LINKS)


def _num_linked(scores: Float[Tensor, "words patches"]) -> Tensor:
    """Return the smallest number of patches that make up half of each word's positive scores."""
    best = scores.clamp_min(0).sort(-1, descending=True).values
    before = best.cumsum(-1) - best
    return ((before < _LINKED_SHARE * best.sum(-1, keepdim=True)) & (best > 0)).sum(-1)


def _results(results: Sequence[SearchResult], names: Sequence[str]) -> Stage:
    items = tuple(Item(hit.name, name, hit.note) for hit, name in zip(results, names, strict=True))
    scores = torch.tensor([hit.score for hit in results], dtype=torch.float32)
    first = torch.zeros(1, dtype=torch.int64)
    kept = Selection(first, scores, torch.ones_like(scores, dtype=torch.bool))
    return Stage("images found, best first", kept, items)


def cost_lines(cost: PatchCost) -> dict[str, str]:
    """Return the cost of one image and one pair, as the explorer shows it."""
    return {
        "patches": f"{cost.patches} > {cost.kept} kept",
        "tokens x words": f"{cost.tokens} x {cost.words}",
        "one pair": f"{cost.pair_kmacs / 1000:.2g} M multiply-adds",
        "image in an index": f"{cost.index_bytes / 1024:.1f} KiB",
        "image encoder": f"{cost.encode_image_ms:.1f} ms",
        "text encoder": f"{cost.encode_text_ms:.1f} ms",
        "matching": f"{cost.match_ms:.1f} ms",
    }
