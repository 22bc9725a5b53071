"""The leak test: dense text must not reveal which image a query belongs to.

An image's dense caption may change that image's scores and no others. The published network, where
a query gets the dense caption of its own true image, fails: its scores depend on the image that
a query is assigned to.
"""

import torch

from eligo.patches.data.scene_source import SceneSet
from eligo.patches.inference.evaluate import encode_pieces, score_with_oracle
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures

_SCENES = 32


@torch.no_grad()
def leak_test(model: RetrievalModel, scenes: SceneSet) -> dict[str, bool]:
    """Return `passes`: ours does not leak; and `documented_leaks`: the published one does."""
    graph, captions = scenes.rendered.graph, scenes.captions.relation.shape[1]
    subset = SceneSet(graph.config, graph.split, min(_SCENES, len(scenes)), captions, graph.device)
    texts = model.text_side(encode_pieces(model, subset.texts(512)))
    dense = encode_pieces(model, subset.dense(512))
    tokens = torch.cat([model.encode_images(images) for images in subset.images(128)])
    before = model.match(model.image_side(tokens, dense), texts)
    other = torch.arange(len(subset), device=model.device)
    other[0] = 1  # the first image gets the second one's description
    swapped = TextFeatures(dense.words[other], dense.mask[other])
    after = model.match(model.image_side(tokens, swapped), texts)
    own, rolled = (
        score_with_oracle(model, subset, o) for o in (None, subset.owners.roll(captions))
    )
    return {
        "passes": torch.equal(before[1:], after[1:]) and not torch.equal(before[0], after[0]),
        "documented_leaks": not torch.equal(own, rolled),
    }
