"""The leak test on a trained model: dense text must not tell which image a query means.

Ours: an image's dense caption may change that image's scores and no others. The documented wiring,
where a query brings the dense caption of its own true image, is shown to fail: its scores change
with what a query is *said* to be about.
"""

import torch

from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import encode_pieces, score_with_oracle
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures

_SCENES = 32


@torch.no_grad()
def leak_test(model: RetrievalModel, scenes: SceneSet) -> dict[str, bool]:
    """`passes`: ours does not leak; `documented_leaks`: the test can fail, and does there."""
    graph, captions = scenes.rendered.graph, scenes.captions.relation.shape[1]
    few = SceneSet(graph.config, graph.split, min(_SCENES, len(scenes)), captions, graph.device)
    texts = model.text_side(encode_pieces(model, few.texts(512)))
    dense = encode_pieces(model, few.dense(512))
    tokens = torch.cat([model.encode_images(images) for images in few.images(128)])
    before = model.match(model.image_side(tokens, dense), texts)
    other = torch.arange(len(few), device=model.device)
    other[0] = 1  # the first image gets the second one's description
    swapped = TextFeatures(dense.words[other], dense.mask[other])
    after = model.match(model.image_side(tokens, swapped), texts)
    told = score_with_oracle(model, few)
    told_otherwise = score_with_oracle(model, few, few.owners.roll(captions))
    return {
        "passes": torch.equal(before[1:], after[1:]) and not torch.equal(before[0], after[0]),
        "documented_leaks": not torch.equal(told, told_otherwise),
    }
