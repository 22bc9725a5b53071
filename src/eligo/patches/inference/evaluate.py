"""Measure a model on a set: every image with every text, both directions.

Scoring is exhaustive. Several processes split the images. `oracle` wires dense text as the guide
documents it, to show what that leaks: every query brings the description of its own true image.
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
from eligo.patches.model.net import CrossSparseAggrNet
from eligo.patches.model.retrieval_model import RetrievalModel, TextFeatures
from eligo.patches.model.sides import Images, Texts, Words
from eligo.patches.training.gather import Peers

_IMAGES, _TEXTS = 128, 512  # encoded at a time
_ORACLE_TEXTS = 64


def evaluate_set(
    model: RetrievalModel, data: RetrievalSet, peers: Peers | None = None
) -> RetrievalMetrics:
    """Metrics of exhaustive scoring."""
    return retrieval_metrics(score_set(model, data, peers), data.positive.to(model.device))


@torch.no_grad()
def score_set(
    model: RetrievalModel, data: RetrievalSet, peers: Peers | None = None
) -> Float[Tensor, "images texts"]:
    """Scores of every image with every text, on the model's device."""
    images = encode_image_set(model, data)
    texts = model.text_side(encode_pieces(model, data.texts(_TEXTS)))
    if peers is None or peers.count == 1:
        return model.match(images, texts)
    # Equal shares, the last images twice if need be: every process sends as many rows.
    total = len(images.patches)
    share = -(-total // peers.count)
    rows = torch.arange(peers.index * share, (peers.index + 1) * share, device=model.device)
    own = pick(images, rows.clamp(max=total - 1))
    return peers.rows(model.match(own, texts))[:total]


@torch.no_grad()
def score_with_oracle(
    model: RetrievalModel, data: RetrievalSet, owners: Int[Tensor, " texts"] | None = None
) -> Float[Tensor, "images texts"]:
    """As documented: every text comes with the dense caption of the image it was written for.

    A leak, and measured as one: no user's query has that description. `owners` says otherwise which
    image a text was written for.
    """
    match = model.config.match
    if not isinstance(model.net, CrossSparseAggrNet):
        raise InputError(f"--oracle: a model of kind {match.kind} takes no dense text")
    net = build_net(match, model.config.encoders.embed_dim, model.image_encoder.layout, compat=True)
    assert isinstance(net, CrossSparseAggrNet)
    # The documented slot weights have a bias, which the softmax cancels; ours have none.
    weights = net.state_dict()
    weights |= {
        name: torch.zeros_like(weights[name]) for name in weights if name.endswith("3.bias")
    }
    net.load_state_dict(weights | model.net.state_dict())
    net.to(model.device).eval()
    tokens = torch.cat(list(_tokens(model, data)))
    images = model.image_side(tokens)
    words = model.text_side(encode_pieces(model, data.texts(_TEXTS))).words
    dense = model.text_side(encode_pieces(model, data.dense(_TEXTS))).words
    owners = (data.owners if owners is None else owners).to(model.device)
    columns = []
    for ids in torch.arange(len(owners), device=model.device).split(_ORACLE_TEXTS):
        own = Words(dense.vectors[owners[ids]], dense.mask[owners[ids]])
        texts = Texts(Words(words.vectors[ids], words.mask[ids]), own)
        columns.append(net.match(images, texts).scores)
    return torch.cat(columns, 1).float()


@torch.no_grad()
def encode_image_set(model: RetrievalModel, data: RetrievalSet) -> Images:
    """All images of a set, with their dense captions where the model uses them."""
    dense = encode_pieces(model, data.dense(_TEXTS)) if model.uses_dense else None
    return model.image_side(torch.cat(list(_tokens(model, data))), dense)


@torch.no_grad()
def encode_pieces(model: RetrievalModel, batches: Iterable[Pieces]) -> TextFeatures:
    """Words of many texts, padded to the longest."""
    parts = [
        TextFeatures(model.text_encoder(ids.to(model.device), mask.to(model.device)), mask)
        for ids, mask in batches
    ]
    width = max(part.mask.shape[1] for part in parts)
    words = [F.pad(part.words, (0, 0, 0, width - part.mask.shape[1])) for part in parts]
    masks = [F.pad(part.mask, (0, width - part.mask.shape[1])) for part in parts]
    return TextFeatures(torch.cat(words), torch.cat(masks).to(model.device))


def pick(images: Images, rows: Tensor) -> Images:
    """Some of the images."""
    parts = (images.patches, images.cls, images.mask, images.dense)
    return Images(*(None if part is None else part[rows] for part in parts))  # pyright: ignore[reportArgumentType]


def _tokens(model: RetrievalModel, data: RetrievalSet) -> Iterable[Tensor]:
    return (model.encode_images(images) for images in data.images(_IMAGES))
