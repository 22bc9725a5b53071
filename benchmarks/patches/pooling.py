"""Retrieval with pooled image vectors: learned against hierarchical pooling.

    python -m benchmarks.patches.pooling --model runs/patches/model
    python -m benchmarks.patches.pooling --smoke

Images are generated scenes of the test split, queries their captions, the reference is one-sided
MaxSim of all words with [CLS] and all patches of a trained model. `LearnedTokenPooling` is trained
on scenes of the training split; sentence-transformers' `HierarchicalTokenPooling` needs no
training. Both return the same number of unit vectors.

Per factor: the error of a word's best cosine, the share of the unpooled top 10 that is still found,
and the share of true images among the first 10 (a caption may be true of several); the difference
of the two methods has a 95 % interval of the paired bootstrap over captions.

Writes results/pooling.json.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import timed, write_results
from eligo.patches.index.pooling import LearnedTokenPooling, fit_pooling
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pretrained.devices import resolve_device
from eligo.report.intervals import paired_bootstrap
from eligo.scenes import SceneConfig, draw_captions, draw_scenes, is_true, render

RESULTS = Path(__file__).parent / "results" / "pooling.json"
FACTORS, TOP = (2, 4, 8), 10


def vectors_of(
    model: RetrievalModel, split: Literal["train", "test"], count: int
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return unit tokens of scenes, unit words of one caption each, and the true pairs."""
    size = model.image_encoder.image_size
    graph = draw_scenes(SceneConfig(height=size, width=size), split, range(count))
    captions = draw_captions(graph, 1)
    documents, queries = [], []
    for start in range(0, count, 64):
        chunk = range(start, min(start + 64, count))
        pictures = render(graph[start : start + 64]).rgb
        tokens = model.encode_images(pictures)
        prefix = model.image_encoder.layout.num_prefix
        tokens = torch.cat([tokens[:, : min(1, prefix)], tokens[:, prefix:]], 1)  # no registers
        documents += list(F.normalize(tokens.float(), dim=-1).cpu())
        texts = model.encode_texts([captions.text(scene, 0) for scene in chunk])
        for words, mask in zip(texts.words, texts.mask, strict=True):
            queries.append(F.normalize(words[mask].float(), dim=-1).cpu())
    return documents, queries, is_true(captions, graph)[:, 0].T  # (images, captions)


def best_cosines(documents: list[Tensor], queries: list[Tensor]) -> Tensor:
    """Return each word's best cosine in each image: (images, all words)."""
    words = torch.cat(queries)
    return torch.stack([(document @ words.T).amax(0) for document in documents])


def maxsim(best: Tensor, queries: list[Tensor]) -> Tensor:
    """Return means over each caption's words: (images, captions)."""
    return torch.stack([part.mean(1) for part in best.split([len(q) for q in queries], 1)], 1)


def recall(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the share of each caption's positives (at most 10) among its first 10 images."""
    first = scores.topk(min(TOP, len(scores)), 0).indices  # (10, captions)
    hits = positive.gather(0, first).sum(0)
    return hits / positive.sum(0).clamp(1, len(first))


def main(
    model: Annotated[Path | None, tyro.conf.arg(help="Folder of a trained model or run.")] = None,
    train: Annotated[int, tyro.conf.arg(help="Training scenes.")] = 1000,
    test: Annotated[int, tyro.conf.arg(help="Test scenes, one caption each.")] = 1000,
    steps: Annotated[int, tyro.conf.arg(help="Training steps of the pooling.")] = 300,
    device: Annotated[str, tyro.conf.arg(help="Where to encode.")] = "auto",
    smoke: Annotated[bool, tyro.conf.arg(help="A tiny random model; writes nothing.")] = False,
) -> None:
    """Measure and record."""
    if smoke:
        torch.manual_seed(0)
        encoder, train, test, steps = RetrievalModel.tiny().eval(), 12, 12, 2
    else:
        assert model is not None, "--model FOLDER: a trained model is needed"
        encoder = RetrievalModel.from_pretrained(model, device=resolve_device(device))
    documents, queries, _ = vectors_of(encoder, "train", train)
    width, protected = documents[0].shape[1], min(1, encoder.image_encoder.layout.num_prefix)
    torch.manual_seed(0)
    learned = LearnedTokenPooling(width, num_protected_tokens=protected)
    fitted, losses = timed(partial(fit_pooling, learned, documents, queries, steps=steps))
    documents, queries, positive = vectors_of(encoder, "test", test)
    positive = positive.cpu()
    whole = best_cosines(documents, queries)
    full = recall(maxsim(whole, queries), positive)
    rows = []
    for factor in FACTORS:
        learned.pool_factor = float(factor)
        plain = HierarchicalTokenPooling(factor, num_protected_tokens=protected)
        recalls = {}
        for name, pooling in (("learned", learned), ("hierarchical", plain)):
            with torch.no_grad():
                seconds, pooled = timed(lambda p=pooling: [p.pool_one(d) for d in documents])
            best = best_cosines(pooled, queries)
            recalls[name] = recall(maxsim(best, queries), positive)
            own = maxsim(whole, queries).topk(min(TOP, test), 0).indices
            kept = torch.zeros_like(maxsim(best, queries), dtype=torch.bool).scatter(0, own, True)
            rows.append(
                {
                    "factor": factor,
                    "method": name,
                    "vectors": len(pooled[0]),
                    "of": len(documents[0]),
                    "rmse_best_cosine": float((best - whole).square().mean().sqrt()),
                    "top10_of_maxsim": float(recall(maxsim(best, queries), kept).mean()),
                    "true_in_top10": float(recalls[name].mean()),
                    "ms_per_image": 1000 * seconds / test,
                }
            )
            print(json.dumps(rows[-1]))
        gain = paired_bootstrap([(recalls["learned"] - recalls["hierarchical"]).tolist()])
        rows[-2]["gain_over_hierarchical"] = gain
        print(f"factor {factor}: learned - hierarchical {gain}")
    result = {
        "true_in_top10_unpooled": float(full.mean()),
        "train_scenes": train,
        "test_scenes": test,
        "fit": {"steps": steps, "seconds": fitted}
        | {"first_loss": losses[0], "last_loss": losses[-1]},
        "rows": rows,
    }
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}))
    if not smoke:
        write_results(RESULTS, result, str(encoder.device))


if __name__ == "__main__":
    tyro.cli(main)
