"""PixelsModel: RGB-D segmentation guided by words.

DFormerv2 with the Semantic Alignment Module in encoder and decoder. Depth and words are optional,
for the batch or for single samples. Departure from the original (gated form): one LayerNorm for the
text, because unit-norm embeddings give near-zero keys.
"""

import logging
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.errors import InputError
from eligo.nn import SimilarityScale
from eligo.pixels.config import MIN_SIZE, PixelsConfig
from eligo.pixels.model.alignment import SemanticAlignment
from eligo.pixels.model.encoder import Encoder
from eligo.pixels.model.head import Head
from eligo.pixels.text.batch import Text, TextBatch, legacy_text_mask
from eligo.selection import Selection

_log = logging.getLogger("eligo.pixels")


@dataclass(frozen=True, eq=False)
class PixelsOutput:
    """The output of a model for a batch of images."""

    logits: Float[Tensor, "batch classes height width"]
    """Scores of the classes at every pixel of the image; float32."""
    selection: Selection | None = None
    """All words of each image, ranked by mean attention; None: no text."""
    tag_maps: Float[Tensor, "batch words map_height map_width"] | None = None
    """Attention of each place to each word: finest decoder level, mean over heads."""
    entropy: Float[Tensor, " batch"] | None = None
    """Mean entropy of that attention in nats, ln(number of words) at most; 0 without words."""


class PixelsModel(nn.Module):
    """RGB-D segmentation guided by words.

    >>> from eligo.pixels import SIZES
    >>> model = PixelsModel(PixelsConfig(num_classes=5).replace(SIZES["small"])).eval()
    >>> model(torch.randn(1, 3, 64, 96)).logits.shape
    torch.Size([1, 5, 64, 96])
    """

    def __init__(self, config: PixelsConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.encoder, config.sam, config.text_dim)
        self.head = Head(config)
        guided = bool(config.sam.encoder.stages or config.sam.decoder.stages)
        gated = config.sam.form == "gated"
        self.text_norm = nn.LayerNorm(config.text_dim) if guided and gated else None
        self.guided = guided
        _log_unusual_scale(config)

    def forward(
        self,
        rgb: Float[Tensor, "batch 3 height width"],
        depth: Float[Tensor, "batch depth_channels height width"] | None = None,
        depth_mask: Bool[Tensor, "batch 1 height width"] | None = None,
        text: TextBatch | None = None,
        *,
        maps: bool = True,
        bases: Float[Tensor, "#batch ham_channels rank"] | None = None,
    ) -> PixelsOutput:
        """Segment; of `depth`, channel 0 is used where `depth_mask` (if given) is True.

        `maps=False` omits selection, tag_maps and entropy. `bases` are those of the Hamburger.
        """
        logits, tag_maps, attention = self.segment(
            rgb, depth, depth_mask, text, maps=maps, bases=bases
        )
        if tag_maps is None or attention is None or text is None:
            return PixelsOutput(logits)
        selection = Selection.top_k(
            tag_maps.mean((-1, -2)), tag_maps.shape[1], self.real_words(text)
        )
        entropy = -torch.xlogy(attention, attention).sum(-1).mean((1, 2, 3))
        return PixelsOutput(logits, selection, tag_maps, entropy)

    def segment(
        self,
        rgb: Float[Tensor, "batch 3 height width"],
        depth: Float[Tensor, "batch depth_channels height width"] | None = None,
        depth_mask: Bool[Tensor, "batch 1 height width"] | None = None,
        text: TextBatch | None = None,
        *,
        maps: bool = True,
        bases: Float[Tensor, "#batch ham_channels rank"] | None = None,
    ) -> tuple[
        Float[Tensor, "batch classes height width"],
        Float[Tensor, "batch words map_height map_width"] | None,
        Float[Tensor, "batch heads map_height map_width words"] | None,
    ]:
        """Return logits, the attention map of each word, and the attention of every head."""
        _check_sizes(rgb, depth, depth_mask)
        words = self._words(text, rgb.shape[0])
        features = self.encoder(rgb, depth, depth_mask, words)
        logits, attention = self.head(features, words, bases=bases, return_map=maps)
        logits, size = logits.float(), rgb.shape[-2:]
        if logits.is_cuda:  # classes in planes: what follows would copy them, in the full size
            logits = logits.contiguous()
        logits = F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
        if attention is None:
            return logits, None, None
        return logits, attention.mean(1).permute(0, 3, 1, 2), attention

    def temperatures(self) -> dict[str, Float[Tensor, ""]]:
        """Return every multiplier (`scale/...`) and gate (`gate/...`) of the alignment."""
        values: dict[str, Tensor] = {}
        for path, module in self.named_modules():
            if isinstance(module, SimilarityScale):
                values[f"scale/{path.removesuffix('.attention.scale')}"] = module.scale.detach()
            if isinstance(module, SemanticAlignment):
                for name, gate in module.named_parameters(recurse=False):
                    values[f"{name}/{path}"] = gate.detach()
        return values

    def real_words(self, text: TextBatch) -> Bool[Tensor, "batch words"]:
        """Return which words the model reads: not padding, nor zero vectors in the legacy form."""
        if self.config.sam.legacy_text_mask:
            return text.mask & legacy_text_mask(text.embeddings)
        return text.mask

    def _words(self, text: TextBatch | None, batch: int) -> Text | None:
        if text is None or not self.guided:
            return None
        samples, _, width = text.embeddings.shape
        if (samples, width) != (batch, self.config.text_dim):
            raise InputError(
                f"text: got {samples} samples, {width} wide, expected {batch} samples, "
                f"{self.config.text_dim} wide: one for every image, from the text encoder that the "
                "model was trained with (text_dim)"
            )
        mask = self.real_words(text)
        # Zero padding, so that it does not affect the gradient of the norm.
        embeddings = text.embeddings.masked_fill(~mask.unsqueeze(-1), 0.0)
        return Text(embeddings if self.text_norm is None else self.text_norm(embeddings), mask)


def _check_sizes(rgb: Tensor, depth: Tensor | None, depth_mask: Tensor | None) -> None:
    size = rgb.shape[-2:]
    if min(size) < MIN_SIZE:
        raise InputError(
            f"rgb: got {size[0]} x {size[1]} pixels, expected at least {MIN_SIZE} x "
            f"{MIN_SIZE}; enlarge the image"
        )
    if depth is None and depth_mask is not None:
        raise InputError("depth_mask: got a mask without depth; expected both or neither")
    for name, tensor in (("depth", depth), ("depth_mask", depth_mask)):
        if tensor is not None and (tensor.shape[0], tensor.shape[-2:]) != (rgb.shape[0], size):
            raise InputError(
                f"{name}: got {tuple(tensor.shape)} for an image {tuple(rgb.shape)}, expected the "
                "same batch, height and width; resize one to the other first"
            )


def _log_unusual_scale(config: PixelsConfig) -> None:
    for name in ("encoder", "decoder"):
        side = getattr(config.sam, name)
        if side.stages and not side.use_cosine and side.logit_init > 2:
            _log.info(
                "sam.%s.logit_init is %g: dot products are not bounded, unlike cosines, and "
                "usually start at 1.0", name, side.logit_init,
            )  # fmt: skip
