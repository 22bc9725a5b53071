"""One image and one text: their score, which patches were kept for it, and what that costs."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from eligo.patches.index.build import matching_net
from eligo.patches.index.entries import pack_images
from eligo.patches.kernels.algebra import prefers_gram
from eligo.patches.model.net import CrossSparseAggrNet
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.scores import PatchExplanation
from eligo.patches.model.sides import Images
from eligo.report.patches_picture import WordMatch, match_picture
from eligo.report.pictures import rgb_picture


@dataclass(frozen=True)
class PatchCost:
    """What one more image costs, and one more pair. Multiply-adds, in thousands."""

    patches: int
    kept: int
    tokens: int
    """Vectors that words are compared with: [CLS], slots, extra token."""
    words: int
    loop_kmacs: float
    """A pair, as documented: networks, folding and matching for every pair."""
    pair_kmacs: float
    """A pair, as eligo does it: networks run once per image, the cheaper order of products."""
    association: str
    """That order: direct (tokens first) or gram (words with patches first)."""
    index_bytes: int
    """Of the image in an index, half precision."""
    encode_image_ms: float
    encode_text_ms: float
    match_ms: float
    """One pair through the network's kernel, with what runs once per image."""


@dataclass(frozen=True)
class PatchPrediction:
    """All that can be told about one pair."""

    score: float
    words: list[dict[str, Any]]
    """Each word piece: its best token and the cosine of the two."""
    cost: PatchCost
    explanation: PatchExplanation
    picture: Image.Image


@torch.no_grad()
def predict(
    model: RetrievalModel, image: Image.Image, text: str, dense: str | None = None
) -> PatchPrediction:
    """Score a pair and open it up; `dense` is the image's dense caption, if the model uses one."""
    net = matching_net(model)
    model.match(model.image_side([image]), model.text_side([text]))  # warm, for the times
    began = time.perf_counter()
    tokens = model.encode_images([image])
    seen = time.perf_counter()
    features = model.encode_texts([text])
    read = time.perf_counter()
    captions = None if dense is None else model.encode_texts([dense], dense=True)
    images = model.image_side(tokens, captions)
    matching = time.perf_counter()
    model.match(images, model.text_side(features))
    matched = time.perf_counter()
    words = features.words[0][features.mask[0]]
    guide = None if captions is None else captions.words[0][captions.mask[0]]
    found = net.explain(tokens[0], words, guide)
    times = (seen - began, read - seen, matched - matching)
    cost = count_cost(net, images, len(words), len(found.token_names), times)
    pieces = model.text_encoder.pieces(text)
    rows = [
        {"word": piece, "best token": found.token_names[token], "cosine": cosine}
        for piece, token, cosine in zip(
            pieces, found.word_tokens.tolist(), found.word_scores.tolist(), strict=True
        )
    ]
    return PatchPrediction(
        found.score, rows, cost, found, _picture(model, image, text, rows, found)
    )


def count_cost(
    net: CrossSparseAggrNet,
    images: Images,
    num_words: int,
    num_tokens: int,
    seconds: tuple[float, float, float],
) -> PatchCost:
    """Count multiply-adds for one image; `seconds`: encoding image and text, matching."""
    num_patches, width = images.patches.shape[1:]
    kept = net.sparse_net_cap.num_kept(num_patches)
    stored = pack_images(net, images)
    slots = stored["logits"].shape[1]
    selections = 2 if net.parts().selects_dense(images.dense is not None) else 1
    networks = selections * kept * int(0.2 * width) * (width + slots)
    if net.use_paper_version:
        networks += selections * num_patches * (width // 4) * (width + 1)
    cosines = num_patches * width
    fold = selections * width * (slots * kept + num_patches - kept)
    match = num_tokens * width * num_words
    mixed = slots + 1
    direct = mixed * width * (num_patches + num_words)
    gram = num_patches * (width * num_words + mixed * (num_words + num_patches))
    uses_gram = prefers_gram(num_patches, width, num_words, mixed)
    # The open variant matches each selection by itself, the paper's both at once.
    times = selections if not net.use_paper_version else 1
    return PatchCost(
        patches=num_patches,
        kept=kept,
        tokens=num_tokens,
        words=num_words,
        loop_kmacs=(networks + cosines + fold + times * match) / 1000,
        pair_kmacs=(cosines + times * (gram if uses_gram else direct)) / 1000,
        association="gram" if uses_gram else "direct",
        index_bytes=sum(part.numel() * part.element_size() for part in stored.values()),
        encode_image_ms=1000 * seconds[0],
        encode_text_ms=1000 * seconds[1],
        match_ms=1000 * seconds[2],
    )


def _picture(
    model: RetrievalModel,
    image: Image.Image,
    text: str,
    rows: list[dict[str, Any]],
    found: PatchExplanation,
) -> Image.Image:
    grid = model.grid_hw
    shown = rgb_picture(model.image_encoder.prepare([image])[0])  # what it saw, stretched as it was
    matches = [
        WordMatch(row["word"], row["best token"], row["cosine"], found.mixing[token].view(grid))
        for row, token in zip(rows, found.word_tokens.tolist(), strict=True)
    ]
    return match_picture(
        shown.resize(image.size),
        found.sparse.kept_mask.view(grid),
        found.sparse.scores.view(grid),
        matches,
        title=f"{text}   {found.score:.3f}",
    )
