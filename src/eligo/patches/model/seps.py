"""CrossSparseAggrNet: all images against all texts, from patches and words to scores.

SEPS (arXiv 2511.01390); with `use_paper_version=False` and no dense text it is LAPS. The published
network is `compat=True`. The defaults differ from it:

- Dense text belongs to the image, (images, words, width), and only guides the selection. The
  published network gives every test query the dense description of its own true image: a leak.
- The decision D has a gradient (see `functional`); a loss on the share of kept patches is an error
  where that share is a constant.
- Prefix tokens are counted, not guessed from squares: a 6x8 grid with [CLS] has 49 tokens.
- Budgets are rounded without floating-point error, and there is at least one slot.
- Where nothing is dropped there is no extra token (a zero vector would floor every maximum at 0).
- Masks are boolean and safe in half precision; K follows each image's own number of patches.
- The last bias of the slot weights is left out: the softmax cancels it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo.errors import InputError
from eligo.nn import full_precision
from eligo.patches import kernels
from eligo.patches.kernels import KERNELS, KernelName
from eligo.patches.kernels.interface import Matches, Parts
from eligo.patches.model import inputs
from eligo.patches.model.aggregation import DualTokenAggregation, TokenAggregation
from eligo.patches.model.explain import PatchExplanation, explain
from eligo.patches.model.hrpa import HRPA
from eligo.patches.model.inputs import Images, Lengths, Texts
from eligo.patches.model.token_sparse import TokenSparse, check_beta, check_ratio
from eligo.selection import Selection

Decision = Literal["topk", "bernoulli"]
DenseLengths = Int[Tensor, " dense"] | Bool[Tensor, "dense dense_words"] | Sequence[int]
Masks = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class PatchScores:
    """Scores of all pairs and, on request, the patches each text keeps in each image."""

    scores: Float[Tensor, "images texts"]
    """Higher is better; float32."""
    sparse: Selection | None
    """Patches kept for the text itself; batch axes `images texts`."""
    dense: Selection | None
    """Patches kept for the dense text, if there is one."""
    kept_ratio: Float[Tensor, ""]
    """Share of kept patches, `(mean D_s + mean D_d) / 2`; has a gradient under `bernoulli`."""


class CrossSparseAggrNet(nn.Module):
    """Score V images against T texts; each text selects its own patches in every image.

    Equations 1-7 of arXiv 2511.01390.
    Per pair of an image with N patches and a text with L words, both of width C = `embed_size`:
        (1-3) `TokenSparse` keeps K = ceil(N * sparse_ratio) patches for the text and folds the
              others into one extra token; a dense text makes a second selection
        (4)   `TokenAggregation` folds the K kept into S = int(num_patches * aggr_ratio *
              sparse_ratio) slots; the paper's version both selections into the same slots
        (5)   `HRPA` matches [CLS], slots and extra token with the words, both ways
    Trained with
        (6)   L_align = sum [m - S_ii + S_ij]+ + sum [m - S_jj + S_ij]+   (`alignment_loss`)
        (7)   L_ratio = (rho - l1 mean D_s - l2 mean D_d)^2               (`ratio_loss`)

    Tensor shapes:
        img_embs (V, prefix + N, C)            cap_embs (T, L, C)
          | [CLS] (V, C), patches X (V, N, C)    | mean word, unit (T, C)
          | mean patch, unit                     |
        s_im (V, N)                            s_st (V, T, N)        s_dt (V, N) from dense text
          +------------------+-------------------+---------------------+
                             | equations 1-3
        score (V, T, N) -> D (V, T, N) of 0 and 1, K ones in each row
                             | equation 4, and the extra token
        slots (V, T, S, C), extra (V, T, 1, C), with [CLS]: tokens (V, T, S + 2, C), unit
                             | equation 5 with words (T, L, C), unit
        scores (V, T)
    None of the (V, T, ., C) tensors is ever built in full: see `kernels`.

    Variants: open (two selections make two scores, which add) or `use_paper_version` (predictors,
    one set of slots, relevance of the top k); `use_dual_aggr=False` folds the sparse selection.
    `compat=True`: the published network, where dense text belongs to the text and the outputs are
    `(scores, mask)` in training and `scores` in evaluation.

    `num_prefix_tokens`: tokens before the first patch, the first of them [CLS], registers after it
    (None: all tokens beyond `num_patches`). `grid_hw`: rows and columns of patches, for heat maps.
    `decision="bernoulli"` draws patches in training, so that their number is learned too.
    `typicality`: weight of s_im in the open variant; -1 keeps what is unlike the rest of the image.
    `kernel`: see `eligo.patches.kernels`.

    >>> net = CrossSparseAggrNet(embed_size=8, num_patches=6, grid_hw=(2, 3))
    >>> net(torch.randn(2, 7, 8), torch.randn(3, 5, 8), torch.tensor([5, 1, 4])).scores.shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        embed_size: int = 512,
        num_patches: int = 196,
        sparse_ratio: float = 0.5,
        aggr_ratio: float = 0.4,
        use_paper_version: bool = False,
        top_k: int = 5,
        use_gumbel_softmax: bool = False,
        gumbel_tau: float = 1.0,
        use_dual_aggr: bool = True,
        beta: float = 0.25,
        *,
        compat: bool = False,
        num_prefix_tokens: int | None = None,
        grid_hw: tuple[int, int] | None = None,
        decision: Decision = "topk",
        typicality: float = 1.0,
        kernel: KernelName = "auto",
    ) -> None:
        super().__init__()
        check_ratio("sparse_ratio", sparse_ratio)
        check_ratio("aggr_ratio", aggr_ratio)
        check_beta(beta)
        _check_settings(use_paper_version, use_gumbel_softmax, gumbel_tau, compat, decision, kernel)
        if typicality != 1.0 and (use_paper_version or compat):
            raise InputError(
                f"typicality: got {typicality}, expected 1 with use_paper_version or compat, whose "
                "scores are fixed"
            )
        _check_grid(num_patches, num_prefix_tokens, grid_hw, compat)
        self.embed_size = embed_size
        self.num_patches = num_patches
        self.use_paper_version = use_paper_version
        self.use_gumbel_softmax = use_gumbel_softmax
        self.gumbel_tau = gumbel_tau
        self.beta = beta
        self.compat = compat
        self.num_prefix_tokens = num_prefix_tokens
        self.grid_hw = grid_hw
        self.decision: Decision = decision
        self.kernel: KernelName = kernel
        sizes = (embed_size, sparse_ratio, use_paper_version)
        self.sparse_net_cap = TokenSparse(*sizes, typicality=typicality, compat=compat)
        self.sparse_net_long = TokenSparse(*sizes, typicality=typicality, compat=compat)
        dual = use_paper_version and use_dual_aggr
        self.aggr_net = (DualTokenAggregation if dual else TokenAggregation)(
            embed_size,
            _num_slots(num_patches, aggr_ratio, sparse_ratio, compat),
            slot_bias=compat,
            compat=compat,
        )
        self.hrpa = HRPA(
            embed_size, top_k, use_paper_version, scan=not use_paper_version, compat=compat
        )

    def forward(
        self,
        img_embs: Float[Tensor, "images tokens image_dim"],
        cap_embs: Float[Tensor, "texts words text_dim"],
        cap_lens: Lengths,
        long_cap_embs: Float[Tensor, "dense dense_words dense_dim"] | None = None,
        long_cap_lens: DenseLengths | None = None,
        *,
        patch_mask: Bool[Tensor, "images patches"] | None = None,
        return_selection: bool = False,
    ) -> PatchScores | Float[Tensor, "images texts"] | tuple[Float[Tensor, "images texts"], Masks]:
        """Return the scores of all pairs.

        Lengths are integers, one per text, or boolean masks (True = a word). Dense text: one per
        image (`compat`: one per text). `patch_mask`: True where a patch is real. `return_selection`
        adds the kept patches to the result (and makes it `PatchScores` with `compat` too).
        """
        images, texts = self.sides(
            img_embs, cap_embs, cap_lens, long_cap_embs, long_cap_lens, patch_mask=patch_mask
        )
        published = self.compat and not return_selection
        decisions = return_selection or (published and self.training)
        matches = self.match(images, texts, decisions=decisions)
        if published:
            return (matches.scores, self._masks(matches)) if self.training else matches.scores
        sparse, dense = (
            None if decision is None else decision.selection(images.mask)
            for decision in (matches.sparse, matches.dense)
        )
        return PatchScores(matches.scores.float(), sparse, dense, matches.share.float().mean())

    def sides(
        self,
        img_embs: Float[Tensor, "images tokens image_dim"],
        cap_embs: Float[Tensor, "texts words text_dim"],
        cap_lens: Lengths,
        long_cap_embs: Float[Tensor, "dense dense_words dense_dim"] | None = None,
        long_cap_lens: DenseLengths | None = None,
        *,
        patch_mask: Bool[Tensor, "images patches"] | None = None,
    ) -> tuple[Images, Texts]:
        """Check the arguments of `forward` and return them as the inputs of `match`."""
        if img_embs.shape[-1] != self.embed_size:
            raise InputError(
                f"img_embs: got vectors {img_embs.shape[-1]} wide, expected "
                f"embed_size={self.embed_size}"
            )
        if self.compat and patch_mask is not None:
            raise InputError("patch_mask: the published network has none; use compat=False")
        patches, cls = inputs.split_tokens(
            img_embs, patch_mask, self._num_prefix(img_embs.shape[1])
        )
        words = inputs.read_words("cap", cap_embs, cap_lens, self.embed_size)
        if long_cap_embs is None:
            return Images(patches, cls, patch_mask), Texts(words)
        # As published, dense words get no gradient: they only guide the selection.
        dense = inputs.read_words(
            "long_cap", long_cap_embs.detach(), long_cap_lens, self.embed_size
        )
        owners, what = (words.mask, "text") if self.compat else (patches, "image")
        if len(dense.mask) != len(owners):
            raise InputError(
                f"long_cap_embs: got {len(dense.mask)} dense texts for {len(owners)} {what}s, "
                f"expected one for every {what}"
                + ("" if self.compat else " (compat=True: for every query)")
            )
        if self.compat:
            return Images(patches, cls, patch_mask), Texts(words, dense)
        return Images(patches, cls, patch_mask, dense.directions()), Texts(words)

    def match(self, images: Images, texts: Texts, *, decisions: bool = False) -> Matches:
        """Score all pairs with the kernel of this network."""
        with full_precision():
            return kernels.match(self.kernel, self.parts(), images, texts, decisions=decisions)

    def match_pairs(
        self,
        images: Images,
        texts: Texts,
        image_ids: Int[Tensor, " pairs"],
        text_ids: Int[Tensor, " pairs"],
    ) -> Float[Tensor, " pairs"]:
        """Score only the pairs (image_ids[i], text_ids[i])."""
        with full_precision():
            return kernels.match_pairs(
                self.kernel, self.parts(), images, texts, image_ids, text_ids
            )

    def num_kept(self, num_patches: int) -> int:
        """Return the number of patches of N that a text keeps."""
        return self.sparse_net_cap.num_kept(num_patches)

    @property
    def sparse_ratio(self) -> float:
        """Share of the patches that a text keeps."""
        return self.sparse_net_cap.sparse_ratio

    @sparse_ratio.setter
    def sparse_ratio(self, ratio: float) -> None:
        self.sparse_net_cap.sparse_ratio = self.sparse_net_long.sparse_ratio = ratio

    def explain(
        self,
        image: Float[Tensor, "tokens image_dim"],
        text: Float[Tensor, "words text_dim"],
        dense: Float[Tensor, "dense_words dense_dim"] | None = None,
    ) -> PatchExplanation:
        """Explain the score of one image and one text: patches kept, tokens, words."""
        long, length = (None, None) if dense is None else (dense[None], [len(dense)])
        images, texts = self.sides(image[None], text[None], [len(text)], long, length)
        with torch.no_grad(), full_precision():
            return explain(self.parts(), images, texts, self.grid_hw)

    def parts(self) -> Parts:
        """Return the modules and settings that kernels need."""
        return Parts(
            sparse=self.sparse_net_cap,
            dense=self.sparse_net_long,
            aggregation=self.aggr_net,
            hrpa=self.hrpa,
            beta=self.beta,
            temperature=self.gumbel_tau,
            compat=self.compat,
            gumbel=self.use_gumbel_softmax,
            bernoulli=self.decision == "bernoulli" and self.training,
        )

    def _num_prefix(self, num_tokens: int) -> int:
        if self.compat:
            return inputs.prefix_of_square(num_tokens)
        if self.num_prefix_tokens is not None:
            return self.num_prefix_tokens
        if num_tokens < self.num_patches:
            raise InputError(
                f"img_embs: got {num_tokens} tokens, expected at least num_patches="
                f"{self.num_patches}; too few tokens: set num_patches, or num_prefix_tokens if the "
                "number of patches varies"
            )
        return num_tokens - self.num_patches

    def _masks(self, matches: Matches) -> Masks:
        """Return the masks of the published network, (texts, images, patches)."""
        decisions = [part for part in (matches.sparse, matches.dense) if part is not None]
        masks = tuple(part.live.transpose(0, 1) for part in decisions)
        return masks if self.use_paper_version else sum(masks[1:], masks[0])


def _num_slots(num_patches: int, aggr_ratio: float, sparse_ratio: float, compat: bool) -> int:
    """Return S, the number of tokens that the kept patches are folded into."""
    exact = num_patches * aggr_ratio * sparse_ratio
    return int(exact) if compat else max(1, math.floor(exact + 1e-9))


def _check_settings(
    paper: bool, gumbel: bool, tau: float, compat: bool, decision: str, kernel: str
) -> None:
    if decision not in ("topk", "bernoulli"):
        raise InputError(f"decision: got {decision!r}, expected 'topk' or 'bernoulli'")
    if kernel not in KERNELS:
        raise InputError(f"kernel: got {kernel!r}, expected one of {', '.join(KERNELS)}")
    if decision == "bernoulli" and (compat or not paper):
        raise InputError(
            "decision='bernoulli': draws patches by the scores of equation 3; expected "
            "use_paper_version=True and compat=False"
        )
    if gumbel and not compat:
        raise InputError(
            "use_gumbel_softmax: its noise never changes the selection; expected compat=True for "
            "the published behaviour, or decision='bernoulli' for patches drawn at random"
        )
    if not tau > 0:
        raise InputError(f"gumbel_tau: got {tau}, expected a temperature > 0, e.g. 1.0")


def _check_grid(
    num_patches: int, num_prefix: int | None, grid_hw: tuple[int, int] | None, compat: bool
) -> None:
    if num_patches < 1:
        raise InputError(f"num_patches: got {num_patches}, expected at least 1, e.g. 196")
    if num_prefix is not None and (num_prefix < 0 or compat):
        raise InputError(
            f"num_prefix_tokens: got {num_prefix} with compat={compat}; expected a count >= 0 and "
            "compat=False (the published network guesses it from squares)"
        )
    if grid_hw is not None and grid_hw[0] * grid_hw[1] != num_patches:
        raise InputError(
            f"grid_hw: got {grid_hw}, expected rows * columns = num_patches = {num_patches}"
        )
