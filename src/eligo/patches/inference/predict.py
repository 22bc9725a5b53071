"""Match one image with one text: the score, the patches kept for it, and the cost."""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from eligo.errors import InputError
from eligo.images import ImageLike, as_image
from eligo.io.files import write_text, writing
from eligo.patches.index.entries import pack_images
from eligo.patches.kernels.algebra import prefers_gram
from eligo.patches.model.baselines import GlobalCosine
from eligo.patches.model.explain import PatchExplanation
from eligo.patches.model.inputs import Images
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.pretrained.devices import resolve_device
from eligo.report.patches_picture import WordMatch, match_picture
from eligo.report.pictures import contact_sheet, rgb_picture
from eligo.selection import Selection

PICTURE, RESULT = "patches.png", "result.json"
_CELL = 336  # pixels


@dataclass(frozen=True)
class PatchCost:
    """Cost of one more image and of one more pair; multiply-adds in thousands."""

    patches: int
    kept: int
    tokens: int
    """Vectors that words are compared with: [CLS], slots, extra token."""
    words: int
    loop_kmacs: float
    """A pair as published: networks, folding and matching for every pair."""
    pair_kmacs: float
    """A pair in eligo: networks run once per image, the cheaper order of products."""
    association: str
    """That order: direct (tokens first) or gram (words with patches first)."""
    index_bytes: int
    """Size of the image in an index, half precision."""
    encode_image_ms: float
    encode_text_ms: float
    match_ms: float
    """One pair with the network's kernel, including the work done once per image."""


@dataclass(frozen=True, eq=False)
class PatchPrediction:
    """The match of one image and one text."""

    score: float
    words: list[dict[str, Any]]
    """Each word piece: its best token and the cosine of the two."""
    cost: PatchCost
    explanation: PatchExplanation
    picture: Image.Image
    """Kept patches, their scores, and the match of every word."""
    image: Image.Image
    text: str
    note: str = ""
    """What the model cannot show (see `RetrievalModel.note`)."""

    @property
    def selection(self) -> Selection:
        """The patches kept for the text."""
        return self.explanation.sparse

    def summary(self) -> dict[str, Any]:
        """Return score, kept patches (row by row of the grid), words and cost as plain values."""
        kept = self.selection.in_order().indices.tolist()
        values = {"score": self.score, "kept": kept, "words": self.words, "cost": asdict(self.cost)}
        return values | ({"note": self.note} if self.note else {})

    def save(self, folder: str | Path) -> Path:
        """Write patches.png, result.json and a record for `eligo explore`; return the folder."""
        from eligo.explorer.folder import save_prediction
        from eligo.patches.inference.record import record

        folder = Path(folder)
        with writing(folder / PICTURE) as temporary:
            self.picture.save(temporary, "PNG")
        result = self.summary() | {"text": self.text}
        write_text(folder / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        save_prediction(record(self, note=self.note), folder)
        return folder


@torch.no_grad()
def predict(
    image: ImageLike,
    text: str,
    *,
    model: str | Path | RetrievalModel,
    dense: str | None = None,
    budget: int | float | None = None,
    device: str = "auto",
) -> PatchPrediction:
    """Score a pair and explain the score.

    `model` is a name, a folder or a loaded model; `dense` the image's dense caption, for a model
    that was trained with them; `budget` the number of patches to keep or, if a float, a share of
    them; by default that of the training. A model with one vector per image and text has one patch,
    the whole image, and one word, the whole text.

    >>> from eligo.patches import predict  # doctest: +SKIP
    >>> predict("photo.jpg", "a red ball", model="patches").selection  # doctest: +SKIP
    """
    if not text.strip():
        raise InputError("text: got an empty text, expected at least one word")
    if not isinstance(model, RetrievalModel):
        as_image(image)  # a missing file is reported before a model is loaded
        model = RetrievalModel.from_pretrained(model, device=resolve_device(device))
    model.check_dense(dense is not None)
    opened = as_image(image, model.image_encoder.image_size)
    with model.keeping(budget):
        return _predict(opened, text, model, dense)


def _predict(
    opened: Image.Image, text: str, model: RetrievalModel, dense: str | None
) -> PatchPrediction:
    net = model.index_net()
    model.match(model.image_side([opened]), model.text_side([text]))  # warm-up, for the times
    started = time.perf_counter()
    tokens = model.encode_images([opened])
    image_encoded = time.perf_counter()
    features = model.encode_texts([text])
    text_encoded = time.perf_counter()
    captions = None if dense is None else model.encode_texts([dense], dense=True)
    images = model.image_side(tokens, captions)
    matching = time.perf_counter()
    model.match(images, model.text_side(features))
    times = (image_encoded - started, text_encoded - image_encoded, time.perf_counter() - matching)
    if isinstance(net, GlobalCosine):
        explanation = net.explain(images, model.text_side(features))
        pieces, cost = [text], _global_cost(net.image_vectors(images), times)
    else:
        words = features.words[0][features.mask[0]]
        dense_words = None if captions is None else captions.words[0][captions.mask[0]]
        explanation = net.explain(tokens[0], words, dense_words)
        pieces = model.text_encoder.pieces(text)
        cost = count_cost(net, images, len(words), len(explanation.token_names), times)
    best = zip(
        pieces,
        explanation.word_tokens.tolist(),
        explanation.word_scores.tolist(),
        strict=True,
    )
    rows = [
        {"word": piece, "best token": explanation.token_names[token], "cosine": cosine}
        for piece, token, cosine in best
    ]
    return PatchPrediction(
        score=explanation.score,
        words=rows,
        cost=cost,
        explanation=explanation,
        picture=_picture(model, opened, text, rows, explanation),
        image=opened,
        text=text,
        note=model.note,
    )


def count_cost(
    net: CrossSparseAggrNet | LateInteraction,
    images: Images,
    num_words: int,
    num_tokens: int,
    seconds: tuple[float, float, float],
) -> PatchCost:
    """Count multiply-adds for one image; `seconds`: encoding image and text, matching."""
    num_patches, width = images.patches.shape[1:]
    stored = pack_images(net, images)
    index_bytes = sum(part.numel() * part.element_size() for part in stored.values())
    times = [1000 * part for part in seconds]
    if isinstance(net, LateInteraction):
        # Cosines of all patches with the words, one vector each; or scores of all patches and
        # cosines of the kept ones.
        matched = num_patches * num_words
        if net.relevance == "mean":
            matched = num_patches + num_tokens * num_words
        pair = width * (matched + 1) / 1000
        sizes = num_patches, num_tokens, num_tokens, num_words
        return PatchCost(*sizes, pair, pair, "direct", index_bytes, *times)
    kept = net.sparse_net_cap.num_kept(num_patches)
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
    matches = selections if not net.use_paper_version else 1
    return PatchCost(
        patches=num_patches,
        kept=kept,
        tokens=num_tokens,
        words=num_words,
        loop_kmacs=(networks + cosines + fold + matches * match) / 1000,
        pair_kmacs=(cosines + matches * (gram if uses_gram else direct)) / 1000,
        association="gram" if uses_gram else "direct",
        index_bytes=index_bytes,
        encode_image_ms=times[0],
        encode_text_ms=times[1],
        match_ms=times[2],
    )


def _global_cost(
    vectors: Float[Tensor, "images dim"], seconds: tuple[float, float, float]
) -> PatchCost:
    """Return the cost of one vector per image and text."""
    width = vectors.shape[1]
    times = (1000 * part for part in seconds)
    return PatchCost(1, 1, 1, 1, width / 1000, width / 1000, "direct", 2 * width, *times)


def _picture(
    model: RetrievalModel,
    image: Image.Image,
    text: str,
    rows: list[dict[str, Any]],
    explanation: PatchExplanation,
) -> Image.Image:
    grid = model.grid_hw
    picture = rgb_picture(model.image_encoder.prepare([image])[0])  # the model's square input
    title = f"{text}   {explanation.score:.3f}"
    if model.note:
        return contact_sheet([[picture]], columns=["input of the model"], title=title, cell=_CELL)
    matches = [
        WordMatch(
            row["word"], row["best token"], row["cosine"], explanation.mixing[token].view(grid)
        )
        for row, token in zip(rows, explanation.word_tokens.tolist(), strict=True)
    ]
    return match_picture(
        picture.resize(image.size),
        explanation.sparse.kept_mask.view(grid),
        explanation.sparse.scores.view(grid),
        matches,
        title=title,
    )
