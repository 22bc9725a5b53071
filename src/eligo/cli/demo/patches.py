"""Retrieval of images by captions: by one vector each, by all patches, by the kept patches."""

from statistics import median
from time import perf_counter

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from eligo.cli.demo.part import DemoSettings, MethodResult, Part, pick_examples
from eligo.cli.patches.flags import SHIPPED
from eligo.explorer.record import Answer, ExplorerRecord
from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import encode_image_set, encode_pieces
from eligo.patches.inference.predict import predict
from eligo.patches.inference.record import SearchResult, record
from eligo.patches.metrics import retrieval_metrics
from eligo.patches.model.baselines import GlobalCosine, TwoSidedMax
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.load import shipped_models
from eligo.report.pictures import rgb_picture
from eligo.scenes.config import SceneConfig
from eligo.scenes.phrases import to_text
from eligo.train.progress import ProgressBar

NAME, QUESTION = "patches", "which image patches matter to this text?"
COSINE, ALL, OURS = "one vector each", "all patches", "kept patches"
_IMAGES, _AT_ONCE = 240, 24
_RECORDS, _RESULTS = 4, 6
_NOTE = (
    "{count} captions retrieve their image from {count} new scenes. Score: R@1. One vector each: "
    "cosine of the means. All patches: every word's best patch and every patch's best word. The "
    "encoders are the same, trained for the last row. Time: one caption with all images, median."
)


@torch.no_grad()
def run(settings: DemoSettings) -> Part:
    """Match every caption with every image, by every method."""
    if SHIPPED not in shipped_models():
        return Part(NAME, QUESTION, "no trained model is shipped yet")
    model = RetrievalModel.from_pretrained(SHIPPED, device=torch.device(settings.device))
    net, size = model.selecting_net(), model.image_encoder.image_size
    world = SceneConfig(seed=settings.seed, height=size, width=size)
    scenes = SceneSet(world, "test", settings.count(_IMAGES), 1, model.device)
    images = encode_image_set(model, scenes)
    every = TwoSidedMax(images.patches.shape[2])
    matchers = {COSINE: GlobalCosine().match, ALL: every.match, OURS: model.match}
    parts: dict[str, list[Tensor]] = {name: [] for name in matchers}
    seconds: dict[str, list[float]] = {name: [] for name in matchers}
    with ProgressBar(NAME, len(scenes)) as bar:
        for pieces in scenes.texts(_AT_ONCE):
            texts = model.text_side(encode_pieces(model, [pieces]))
            for name, match in matchers.items():
                began = perf_counter()
                parts[name].append(match(images, texts).cpu())
                seconds[name].append((perf_counter() - began) / parts[name][-1].shape[1])
            bar.update(sum(part.shape[1] for part in parts[OURS]))
    scores = {name: torch.cat(part, 1) for name, part in parts.items()}
    positive = scenes.positive.cpu()
    hits = {
        name: (retrieval_metrics(score, positive).text_to_image.ranks == 0).tolist()
        for name, score in scores.items()
    }
    patches = images.patches.shape[1]
    kept = net.num_kept(patches)
    sizes = {COSINE: f"mean of {patches}", ALL: f"{patches}", OURS: f"{kept} of {patches}"}
    rows = tuple(
        MethodResult.of_hits(
            name, hits[name], size, seconds=median(seconds[name]), is_ours=name == OURS
        )
        for name, size in sizes.items()
    )
    won = [ours and not other for ours, other in zip(hits[OURS], hits[COSINE], strict=True)]
    places = pick_examples(won, [not ours for ours in hits[OURS]], _RECORDS)
    return Part(
        NAME,
        QUESTION,
        _NOTE.format(count=len(scenes)),
        rows,
        tuple(_record(model, scenes, scores, positive, place) for place in places),
    )


def _record(
    model: RetrievalModel,
    scenes: SceneSet,
    scores: dict[str, Float[Tensor, "images texts"]],
    positive: Bool[Tensor, "images texts"],
    place: int,
) -> ExplorerRecord:
    """Return the record of a caption with its best images."""
    text = scenes.captions.text(place, 0)
    best = scores[OURS][:, place].topk(min(_RESULTS, len(scenes)))
    results = [
        SearchResult(
            f"scene {row}",
            rgb_picture(scenes.rendered.rgb[row]),
            score,
            "the caption is true of it" if positive[row, place] else "",
        )
        for score, row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    first = int(best.indices[0])
    dense = to_text(scenes.dense_words[first].tolist()) if model.uses_dense else None
    prediction = predict(results[0].picture, text, model=model, dense=dense)
    firsts = {name: int(score[:, place].argmax()) for name, score in scores.items()}
    answers = tuple(
        Answer(name, f"scene {row}", bool(positive[row, place])) for name, row in firsts.items()
    )
    return record(prediction, results=results, answers=answers)
