"""What the network returns: scores, and which patches each text kept."""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from eligo import ops
from eligo.selection import Selection


class Choice(NamedTuple):
    """A kernel's selection: what ranked the patches, and the decision D (0 or 1, perhaps live)."""

    score: Float[Tensor, "*pairs patches"]
    live: Float[Tensor, "*pairs patches"]

    def selection(self, mask: Bool[Tensor, "images patches"] | None) -> Selection:
        """As the value that all of eligo reads: kept patches, best first."""
        kept = self.live.detach() > 0.5
        real = kept.new_ones(kept.shape) if mask is None else mask.unsqueeze(1).expand(kept.shape)
        width = int(kept.sum(-1).max()) if kept.numel() else 0
        score = self.score.detach().float()
        return Selection(ops.top_k(score, width, kept), score, real.contiguous())


class Matches(NamedTuple):
    """What a kernel returns for all pairs."""

    scores: Float[Tensor, "images texts"]
    share: Float[Tensor, "images texts"]
    """Mean of D over the patches (and over both selections), with the gradient D has."""
    sparse: Choice | None
    dense: Choice | None


@dataclass(frozen=True, eq=False)
class PatchScores:
    """Scores of all pairs and, if asked for, the patches kept by each text in each image."""

    scores: Float[Tensor, "images texts"]
    """Higher is better; float32."""
    sparse: Selection | None
    """Patches kept for the text itself; batch axes `images texts`."""
    dense: Selection | None
    """Patches kept for the dense text, where one was given."""
    kept_ratio: Float[Tensor, ""]
    """Share of the patches kept, `(mean D_s + mean D_d) / 2`; live under `bernoulli`."""


@dataclass(frozen=True, eq=False)
class PatchExplanation:
    """Why one image and one text match: patches kept, tokens made of them, words and tokens."""

    score: float
    sparse: Selection
    """Patches kept for the text; no batch axes."""
    dense: Selection | None
    mixing: Float[Tensor, "tokens patches"]
    """How each token is made of patches; rows [CLS] (zeros: made of none), slots, extra."""
    token_names: tuple[str, ...]
    word_tokens: Int[Tensor, " words"]
    """Each word's best token: a row of `mixing`."""
    word_scores: Float[Tensor, " words"]
    """The cosine of each word with its best token."""
    word_patches: Float[Tensor, "words patches"]
    """What each patch adds to that cosine, exactly: a row sums to it (to 0 where it is [CLS])."""
    heat_map: Float[Tensor, "height width"] | None
    """Selection scores on the patch grid; None where the grid is unknown."""
