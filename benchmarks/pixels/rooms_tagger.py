"""The tagger of the study on rooms: which classes a frame shows, from its colours alone.

Features of a frozen vision encoder (class token and mean patch of its last layer), and a linear
layer with one output per class, trained on frames of `train`. Frames of `train` are tagged by
taggers that did not see them or their neighbours, so that a segmentation network trains with tags
as good as those that it will get; frames of `test` by a tagger of all of `train`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from eligo.images import open_image
from eligo.pixels.data.pictures import normalise_rgb, read_photo
from eligo.pretrained.load import find_encoder, load_stock

FOLDS = 5
_BATCH = 32
_ITERATIONS, _DECAY = 60, 0.3
_THRESHOLDS = torch.arange(0.1, 0.9, 0.02)


@torch.no_grad()
def frame_features(
    name: str, frames: Sequence[Path], device: torch.device
) -> Float[Tensor, "frames dim"]:
    """Return the features of whole frames, scaled to sides that the patch size divides."""
    from transformers import AutoModel

    model: Any = load_stock(AutoModel, find_encoder("vision", name), exact=False).to(device).eval()
    patch, height = model.config.patch_size, model.config.image_size
    height = min(height, 224) // patch * patch
    found = []
    for first in range(0, len(frames), _BATCH):
        images = [open_image(path) for path in frames[first : first + _BATCH]]
        width = ceil(height * images[0].width / images[0].height / patch) * patch
        pixels = torch.stack([read_photo(image.resize((width, height))).pixels for image in images])
        states = model(
            normalise_rgb(pixels.to(device)), interpolate_pos_encoding=True
        ).last_hidden_state
        found.append(torch.cat((states[:, 0], states[:, 1:].mean(1)), -1).cpu())
    return torch.cat(found)


@dataclass(frozen=True, eq=False)
class Tagged:
    """The tags of all frames."""

    train: Bool[Tensor, "train_frames classes"]
    """By taggers that did not see the frame."""
    test: Bool[Tensor, "test_frames classes"]
    threshold: float
    """Of the probabilities: the best F1 on `train`."""


def tag_frames(
    train: Float[Tensor, "train_frames dim"],
    test: Float[Tensor, "test_frames dim"],
    shown: Bool[Tensor, "train_frames classes"],
) -> Tagged:
    """Return tags of all frames; `train` is in the order of the frame numbers."""
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    train, test = ((part - mean) / std for part in (train, test))
    found = torch.zeros(shown.shape)
    for fold in torch.arange(len(train)).chunk(FOLDS):  # successive frames are in one fold
        others = torch.ones(len(train), dtype=torch.bool)
        others[fold] = False
        found[fold] = _probabilities(train[others], shown[others], train[fold])
    scores = [_f1(found > threshold, shown) for threshold in _THRESHOLDS]
    threshold = float(_THRESHOLDS[int(torch.tensor(scores).argmax())])
    return Tagged(found > threshold, _probabilities(train, shown, test) > threshold, threshold)


def _probabilities(features: Tensor, shown: Tensor, frames: Tensor) -> Tensor:
    """Train a linear tagger, by logistic regression; return its probabilities for other frames."""
    layer = torch.nn.Linear(features.shape[1], shown.shape[1])
    share = shown.float().mean(0).clamp(1e-3, 1 - 1e-3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(share.logit())
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        losses = F.binary_cross_entropy_with_logits(
            layer(features), shown.float(), reduction="none"
        )
        total = losses.mean(0).sum() + _DECAY * layer.weight.square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        return layer(frames).sigmoid()


def _f1(found: Tensor, shown: Tensor) -> float:
    return float(2 * (found & shown).sum() / (found.sum() + shown.sum()).clamp_min(1))
