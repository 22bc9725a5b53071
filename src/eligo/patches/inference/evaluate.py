"""Evaluate a model: every image with every text; several processes split the images.

`score_with_oracle` gives every query the dense caption of its own true image, as the published
network does, to measure that leak.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.patches.data.batch import Pieces, RetrievalSet
from eligo.patches.metrics import RetrievalMetrics, retrieval_metrics
from eligo.patches.model.build import build_net
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.patches.training.gather import Peers

_IMAGES, _TEXTS = 128, 512  # encoded at a time
_ORACLE_TEXTS = 64


def evaluate_set(
    model: RetrievalModel, data: RetrievalSet, peers: Peers | None = None
) -> RetrievalMetrics:
    """Return the metrics of exhaustive scoring."""
    return retrieval_metrics(score_set(model, data, peers), data.positive.to(model.device))


@torch.no_grad()
def score_set(
    model: RetrievalModel, data: RetrievalSet, peers: Peers | None = None
) -> Float[Tensor, "images texts"]:
    """Return scores of every image with every text, on the model's device."""
    images = encode_image_set(model, data)
    texts = model.text_side(encode_pieces(model, data.texts(_TEXTS)))
    if peers is None or peers.count == 1:
        return model.match(images, texts)
    # Every process must send equally many rows, so the last image may be scored repeatedly.
    total = len(images.patches)
    share = -(-total // peers.count)
    rows = torch.arange(peers.index * share, (peers.index + 1) * share, device=model.device)
    return peers.rows(model.match(images[rows.clamp(max=total - 1)], texts))[:total]


@torch.no_grad()
def score_with_oracle(
    model: RetrievalModel, data: RetrievalSet, owners: Int[Tensor, " texts"] | None = None
) -> Float[Tensor, "images texts"]:
    """Score with the published network: every text gets its own image's dense caption, a leak.

    `owners`: the image of each text, if not the one it was written for.
    """
    match = model.config.match
    if not isinstance(model.net, CrossSparseAggrNet):
        raise InputError(f"--oracle: a model of kind {match.kind} takes no dense text")
    net = build_net(match, model.config.encoders.embed_dim, model.image_encoder.layout, compat=True)
    assert isinstance(net, CrossSparseAggrNet)
    # The published slot weights have a bias, which the softmax cancels; ours have none.
    weights = net.state_dict()
    biases = {n: torch.zeros_like(part) for n, part in weights.items() if n.endswith("3.bias")}
    net.load_state_dict(weights | biases | model.net.state_dict())
    net.to(model.device).eval()
    images = model.image_side(_encode_images(model, data))
    words = model.text_side(encode_pieces(model, data.texts(_TEXTS))).words
    dense = model.text_side(encode_pieces(model, data.dense(_TEXTS))).words
    owners = (data.owners if owners is None else owners).to(model.device)
    columns = []
    for ids in torch.arange(len(owners), device=model.device).split(_ORACLE_TEXTS):
        texts = Texts(words[ids], dense[owners[ids]])
        columns.append(net.match(images, texts).scores)
    return torch.cat(columns, 1).float()


@torch.no_grad()
def encode_image_set(model: RetrievalModel, data: RetrievalSet) -> Images:
    """Encode all images of a set, with their dense captions if the model uses them."""
    dense = encode_pieces(model, data.dense(_TEXTS)) if model.uses_dense else None
    return model.image_side(_encode_images(model, data), dense)


@torch.no_grad()
def encode_pieces(model: RetrievalModel, batches: Iterable[Pieces]) -> TextFeatures:
    """Encode batches of texts; return their words, padded to the longest."""
    parts = [
        TextFeatures(model.text_encoder.words(ids.to(model.device), mask.to(model.device)), mask)
        for ids, mask in batches
    ]
    width = max(part.mask.shape[1] for part in parts)
    words = [F.pad(part.words, (0, 0, 0, width - part.mask.shape[1])) for part in parts]
    masks = [F.pad(part.mask, (0, width - part.mask.shape[1])) for part in parts]
    return TextFeatures(torch.cat(words), torch.cat(masks).to(model.device))


def _encode_images(model: RetrievalModel, data: RetrievalSet) -> Tensor:
    tokens = model.image_encoder.tokens
    return torch.cat([tokens(images.to(model.device)) for images in data.images(_IMAGES)])
