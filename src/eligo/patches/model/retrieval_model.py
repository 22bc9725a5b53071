"""RetrievalModel: two encoders and the network that matches them, saved as one folder.

`transformers` saves the encoders (`vision/`, `text/`); heads and matching network are
`heads.safetensors` and `net.safetensors`; `config.yaml` holds the settings.

>>> model = RetrievalModel.tiny()
>>> images = model.image_side(torch.zeros(2, 3, 56, 56, dtype=torch.uint8))
>>> texts = model.text_side(["there is a red ball.", "a star is left of a blue box.", "a gem."])
>>> model.match(images, texts).shape
torch.Size([2, 3])
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from eligo.config import load_config, save_config
from eligo.config.yaml import read_yaml
from eligo.errors import InputError
from eligo.io.files import writing_folder
from eligo.io.reading import reading
from eligo.patches.config import RetrievalConfig
from eligo.patches.model.baselines import GlobalCosine, TwoSidedMax
from eligo.patches.model.build import build_encoders, build_net, load_encoders
from eligo.patches.model.encoders import ImageEncoder, Picture, TextEncoder, words_of
from eligo.patches.model.inputs import Images, Texts, split_tokens
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.pooled import PooledImageEncoder, load_pooled
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.pretrained.encoders import find_backbone
from eligo.pretrained.identity import tokenizer_fingerprint
from eligo.pretrained.load import find_model, quiet_transformers
from eligo.pretrained.untrusted import read_header
from eligo.train.weights import load_weights, save_weights

_NET = "net.safetensors"
_HOLDS = ("config.yaml", "heads.safetensors", _NET, "vision/*", "text/*")
Pictures = Sequence[Picture] | UInt8[Tensor, "images 3 height width"]


class TextFeatures(NamedTuple):
    """Words of several texts."""

    words: Float[Tensor, "texts words dim"]
    mask: Bool[Tensor, "texts words"]
    """Which are real."""


class RetrievalModel(nn.Module):
    """Scores images against texts.

    `encode_images` and `encode_texts` return raw features; `image_side` and `text_side` the inputs
    of `match`, from features or from pictures and strings. Scores are (images, texts), higher is
    better. `net` is a `CrossSparseAggrNet` or a `LateInteraction` (both with `explain`), or a
    baseline.
    """

    def __init__(
        self,
        config: RetrievalConfig,
        image_encoder: ImageEncoder,
        text_encoder: TextEncoder,
        net: CrossSparseAggrNet | LateInteraction | GlobalCosine | TwoSidedMax,
    ) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.net = net

    @classmethod
    def build(cls, config: RetrievalConfig) -> "RetrievalModel":
        """Build the encoders named by the config (or small random ones), and a new network."""
        config, image_encoder, text_encoder = build_encoders(config)
        net = build_net(config.match, config.encoders.embed_dim, image_encoder.layout)
        return cls(config, image_encoder, text_encoder, net)

    @classmethod
    def tiny(cls, **match: Any) -> "RetrievalModel":
        """Build a random model of 56 pixels, 7 x 7 patches and [CLS], width 16: for tests."""
        small = {"width": 16, "layers": 1, "heads": 2}
        encoders = {
            "small_vision": {"image_size": 56, "patch_size": 8, **small},
            "small_text": small,
            "embed_dim": 16,
        }
        return cls.build(load_config(RetrievalConfig, {"encoders": encoders, "match": match}))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.image_encoder.mean.device

    @property
    def grid_hw(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.image_encoder.layout.grid_hw

    @property
    def uses_dense(self) -> bool:
        """Whether it was trained with dense captions on the image side."""
        return self.config.match.dense

    def check_dense(self, given: bool) -> None:
        """Raise for a missing dense caption, or one that the model was not trained with."""
        if self.uses_dense and not given:
            raise InputError(
                "dense: got none, but the model was trained with a dense caption for every image; "
                "pass them (--dense)"
            )
        if given and not self.uses_dense:
            raise InputError("dense: the model was trained without dense captions; leave it out")

    @property
    def is_pooled(self) -> bool:
        """Whether this is a CLIP or SigLIP model as it is, which was not trained on patches."""
        return isinstance(self.image_encoder, PooledImageEncoder)

    @property
    def note(self) -> str:
        """One line on what a model with one vector per image and text cannot show; else empty."""
        if not isinstance(self.net, GlobalCosine):
            return ""
        change = "--model.match.kind late"
        if self.is_pooled:
            named = self.config.encoders.vision
            change = f"--model.encoders.vision {named} --model.encoders.text {named}"
        return (
            "The score compares the whole image with the whole text: it ranks, and cannot show "
            "which patches match which words. To learn that from your captions: `eligo patches "
            f"train f30k_vit224 --data.captions FILE --data.images FOLDER {change}`"
        )

    def index_net(self) -> CrossSparseAggrNet | LateInteraction | GlobalCosine:
        """Return the network if an index can hold what it needs; raise for filip."""
        return self.net if isinstance(self.net, GlobalCosine) else self.selecting_net()

    def selecting_net(self) -> CrossSparseAggrNet | LateInteraction:
        """Return the network if it selects patches; raise for baselines."""
        if not isinstance(self.net, CrossSparseAggrNet | LateInteraction):
            raise InputError(
                f"model: matches by kind {self.config.match.kind!r}, which selects no patches; "
                "expected a model of kind late, open or paper"
            )
        return self.net

    @contextmanager
    def keeping(self, budget: int | float | None) -> Iterator[None]:
        """Within the block, keep this number of patches, or share if a float; None: as it is."""
        if budget is None:
            yield
            return
        net, num_patches = self.selecting_net(), math.prod(self.grid_hw)
        share = budget if isinstance(budget, float) else budget / num_patches
        if not 0 < share <= 1:
            raise InputError(
                f"budget: got {budget}, expected 1 to {num_patches} patches, or a share up to 1.0"
            )
        before, net.sparse_ratio = net.sparse_ratio, share
        try:
            yield
        finally:
            net.sparse_ratio = before

    @torch.no_grad()
    def encode_images(self, images: Pictures) -> Float[Tensor, "images tokens dim"]:
        """Return tokens: [CLS] and registers (if any), then the patches of `grid_hw` row by row."""
        encoder = self.image_encoder
        return encoder(encoder.normalise(encoder.prepare(images)))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str], *, dense: bool = False) -> TextFeatures:
        """Return words of texts (`dense`: of dense captions, which may be longer)."""
        ids, mask = self.text_encoder.tokenize(texts, dense=dense)
        return TextFeatures(self.text_encoder(ids, mask), mask)

    def image_side(
        self,
        images: Pictures | Float[Tensor, "images tokens dim"],
        dense: Sequence[str] | TextFeatures | None = None,
    ) -> Images:
        """Return pictures (or their tokens), with any dense captions, as input of `match`."""
        if not (isinstance(images, Tensor) and images.is_floating_point()):
            images = self.encode_images(images)
        patches, cls = split_tokens(images, None, self.image_encoder.layout.num_prefix)
        if dense is None:
            return Images(patches, cls)
        count = len(dense.mask if isinstance(dense, TextFeatures) else dense)
        if count != len(patches):
            raise InputError(
                f"dense: got {count} dense captions for {len(patches)} images, expected one "
                "for every image"
            )
        if not isinstance(dense, TextFeatures):
            dense = self.encode_texts(dense, dense=True)
        return Images(patches, cls, None, words_of(dense.words.detach(), dense.mask).directions())

    def text_side(self, texts: Sequence[str] | TextFeatures) -> Texts:
        """Return texts (or their words) as input of `match`."""
        features = texts if isinstance(texts, TextFeatures) else self.encode_texts(texts)
        return Texts(words_of(features.words, features.mask))

    def match(self, images: Images, texts: Texts) -> Float[Tensor, "images texts"]:
        """Return the scores of all pairs, float32."""
        matches = self.net.match(images, texts)
        return (matches if isinstance(matches, Tensor) else matches.scores).float()

    def save_pretrained(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write a folder for `from_pretrained`; `dtype` torch.float16 halves it."""
        if self.is_pooled:
            raise InputError(
                f"{self.config.encoders.vision}: is used as it is and has nothing trained to save; "
                "copy its folder instead"
            )
        backbones: dict[str, Any] = {
            "vision": self.image_encoder.backbone,
            "text": self.text_encoder.backbone,
        }
        with (
            writing_folder(folder, marker=_NET, holds=_HOLDS) as target,
            quiet_transformers(),
        ):
            for name, backbone in backbones.items():
                stored = deepcopy(backbone).to(dtype) if dtype else backbone
                stored.save_pretrained(target / name)
            self.text_encoder.tokenizer.save_pretrained(target / "text")
            save_weights(target, {"heads": self._heads, "net": self.net}, dtype)
            # The saved config names the saved encoders, not their origin.
            named = [name for name in backbones if getattr(self.config.encoders, name) is not None]
            changes = {f"encoders.{name}": name for name in named}
            changes["encoders.tokenizer"] = tokenizer_fingerprint(self.text_encoder.tokenizer)
            save_config(self.config.replace(changes), target / "config.yaml")

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, device: str | torch.device = "cpu"
    ) -> "RetrievalModel":
        """Load a saved model, in float32 and evaluation mode.

        `name` is the folder of a model or run, a shipped model, or a name on the hub; also a whole
        CLIP or SigLIP model, which is used as it is (see `pooled`).
        """
        folder = find_model(name, _NET)
        folder = folder / "model" if (folder / "model" / "config.yaml").is_file() else folder
        if _is_of_transformers(folder):
            return cls(*load_pooled(str(name)), GlobalCosine()).to(device).eval()
        if not (folder / "vision").is_dir() or not (folder / "config.yaml").is_file():
            raise InputError(
                f"no retrieval model in {folder}: expected config.yaml, vision/, text/, "
                "heads.safetensors and net.safetensors, as `eligo patches train` writes them to "
                "<run>/model"
            )
        with reading(folder / "config.yaml", "the config of a retrieval model"):
            tree, _ = read_yaml(folder / "config.yaml")
            config = load_config(RetrievalConfig, folder / "config.yaml")
            before = {"typicality": 1.0, "relevance": "mean"}  # models without these keys
            missing = before.keys() - (tree.get("match") or {}).keys()
            config = config.replace({f"match.{key}": before[key] for key in missing})
            _check_width(config.encoders.embed_dim, folder / "heads.safetensors")
            image_encoder, text_encoder = load_encoders(config.encoders, folder)
            net = build_net(config.match, config.encoders.embed_dim, image_encoder.layout)
        model = cls(config, image_encoder, text_encoder, net)
        load_weights(folder, {"heads": model._heads, "net": net})
        return model.to(device).eval()

    @property
    def _heads(self) -> nn.ModuleDict:
        return nn.ModuleDict({"image": self.image_encoder.head, "text": self.text_encoder.head})


def _is_of_transformers(folder: Path) -> bool:
    """Whether a folder holds a model of `transformers`, which has a config.json."""
    return (find_backbone("model", str(folder), weights=False) / "config.json").is_file()


def _check_width(embed_dim: int, heads: Path) -> None:
    """Raise for a width far beyond that of the weights, before memory is allocated for it."""
    if not heads.is_file():
        return  # `load_weights` reports it, as it does smaller differences
    rows = max((shape[0] for _, shape in read_header(heads).values() if shape), default=1)
    if embed_dim > 4 * rows:
        raise InputError(
            f"encoders.embed_dim: got {embed_dim}, but the weights in {heads.name} have {rows} "
            "rows; expected config and weights of one model: copy the folder again"
        )
