"""LateInteraction: one vector each, plus all words with the patches that the text keeps.

Late interaction both ways is FILIP (arXiv 2111.07783). Patches are chosen by relevance less
redundancy, as in maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): similar to the
text, unlike the rest of the image. The scores of LAPS and SEPS add the similarity to the mean patch
instead; on photos that keeps the background.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eligo.patches.kernels.interface import Matches, PatchDecision
from eligo.patches.model.best_matches import best_matches, exact_cosines
from eligo.patches.model.explain import PatchExplanation, heat_map
from eligo.patches.model.functional import exact_top_k, mean_patch, unit, wide
from eligo.patches.model.inputs import Images, Texts, Words, split_tokens
from eligo.patches.model.token_sparse import check_ratio, num_kept
from eligo.selection import Selection

_LARGEST = 2**26  # cosines held at a time
Relevance = Literal["mean", "words"]
"""What a patch is compared with: the mean word, or every word."""


class LateInteraction(nn.Module):
    """Score V images against T texts.

        g      = <unit(G [cls, mean patch]), unit(H mean word)>
        s_mp   = <w_m, p> + typicality <p, mean patch>                (cosines)
        s_p    = max_m (s_mp - max_q s_mq)
        K      = the ceil(N sparse_ratio) patches with the highest s_p
        S      = g + mean_m max_{p in K} <w_m, p> + mean_{p in K} max_m <w_m, p>

    Means over words are weighted by softmax_m(a w_m) with `word_weights`; a starts at 0, as equal
    weights. The choice of K has no gradient; G and H start as mean and identity.
    A `typicality` below 0 favours what is unlike the rest of the image, 0 ignores the rest, 1 is
    the score of LAPS. Patches are ranked by how close they come to the best patch q of a word, so
    that no word loses its best one. With `relevance` "mean" they are ranked by the mean word alone,
    `s_p = <p, mean word> + typicality <p, mean patch>`.

    Tensor shapes:
        patches (V, N, C), [CLS] (V, C)        words (T, L, C)
        s (V, T, N) -> kept (V, T, N), K True in each row
        cosines (V, N, T, L), in chunks of images
        scores (V, T)

    >>> net = LateInteraction(8, sparse_ratio=0.5)
    >>> from eligo.patches.model.inputs import Words
    >>> words = Words(torch.randn(3, 5, 8), torch.ones(3, 5, dtype=torch.bool))
    >>> net.match(Images(torch.randn(2, 6, 8), None), Texts(words)).scores.shape
    torch.Size([2, 3])
    """

    compat = False

    def __init__(
        self,
        embed_dim: int,
        sparse_ratio: float = 0.25,
        typicality: float = -0.5,
        *,
        word_weights: bool = False,
        relevance: Relevance = "words",
        num_prefix_tokens: int = 0,
        grid_hw: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_ratio("sparse_ratio", sparse_ratio)
        self.sparse_ratio, self.typicality = sparse_ratio, typicality
        self.relevance: Relevance = relevance
        self.num_prefix_tokens, self.grid_hw = num_prefix_tokens, grid_hw
        self.image_proj = nn.Linear(2 * embed_dim, embed_dim, bias=False)
        self.text_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.word_weight = nn.Linear(embed_dim, 1, bias=False) if word_weights else None
        with torch.no_grad():
            self.text_proj.weight.copy_(torch.eye(embed_dim))
            self.image_proj.weight.copy_(torch.eye(embed_dim).repeat(1, 2) / 2)
            if self.word_weight is not None:
                self.word_weight.weight.zero_()

    def match(self, images: Images, texts: Texts, *, decisions: bool = False) -> Matches:
        """Score all pairs; `decisions`: also return the kept patches."""
        words = texts.words.packed()
        weights = self.weights(words)
        directions, units = unit(_mean_word(words, weights).detach()), unit(words.vectors)
        parts = []
        for chunk in self._chunks(images, units.shape[0] * units.shape[1]):
            late, score, kept = self._score(chunk, units, weights, directions)
            parts.append((late, kept.sum(-1), *((score, kept) if decisions else ())))
        late, counts, *chosen = (torch.cat(column) for column in zip(*parts, strict=True))
        scores = late + self.image_vectors(images) @ self.text_vectors(texts).T
        decision = PatchDecision(chosen[0], chosen[1].to(chosen[0].dtype)) if decisions else None
        num_patches = images.patches.shape[1]
        real = num_patches if images.mask is None else images.mask.sum(-1)[:, None]
        return Matches(scores, counts / real, decision, None)

    def match_pairs(
        self,
        images: Images,
        texts: Texts,
        image_ids: Int[Tensor, " pairs"],
        text_ids: Int[Tensor, " pairs"],
    ) -> Float[Tensor, " pairs"]:
        """Score only the pairs (image_ids[i], text_ids[i]), image by image."""
        scores = torch.zeros(len(image_ids), device=images.patches.device)
        for image in image_ids.unique().tolist():
            rows = (image_ids == image).nonzero().flatten()
            some = Texts(texts.words[text_ids[rows]])
            found = self.match(images[image : image + 1], some).scores[0]
            scores = scores.index_put((rows,), found)
        return scores

    @torch.no_grad()
    def explain(
        self,
        image: Float[Tensor, "tokens dim"],
        text: Float[Tensor, "words dim"],
        _dense: Tensor | None = None,
    ) -> PatchExplanation:
        """Explain the score of one image and one text: patches kept, and each word's best one.

        The tokens are the kept patches, row by row of the grid.
        """
        patches, cls = split_tokens(image[None], None, self.num_prefix_tokens)
        texts = Texts(Words(text[None], torch.ones(1, len(text), dtype=torch.bool).to(text.device)))
        matches = self.match(Images(patches, cls), texts, decisions=True)
        assert matches.sparse is not None
        chosen = matches.sparse.selection(None)
        kept = matches.sparse.live[0, 0].bool().nonzero().flatten()
        mixing = torch.eye(patches.shape[1], device=patches.device)[kept]
        units = unit(patches[0])
        best = (unit(text) @ units[kept].T).max(1)
        norms = torch.linalg.vector_norm(wide(patches[0]), dim=-1).clamp_min(1e-12)
        shares = mixing[best.indices] / norms
        return PatchExplanation(
            score=float(matches.scores[0, 0]),
            sparse=Selection(chosen.indices[0, 0], chosen.scores[0, 0], chosen.mask[0, 0]),
            dense=None,
            mixing=mixing,
            token_names=tuple(f"patch {number}" for number in kept.tolist()),
            word_tokens=best.indices,
            word_scores=best.values,
            word_patches=shares * (unit(text) @ wide(patches[0]).T),
            heat_map=heat_map(matches.sparse.score[0, 0], self.grid_hw),
        )

    def num_kept(self, num_patches: int) -> int:
        """Return the number of kept patches of N."""
        return num_kept(num_patches, self.sparse_ratio)

    def _chunks(self, images: Images, num_words: int) -> Iterator[Images]:
        rows = max(1, _LARGEST // max(1, num_words * images.patches.shape[1]))
        for first in range(0, len(images.patches), rows):
            yield images[first : first + rows]

    def select(
        self,
        images: Images,
        units: Float[Tensor, "images patches dim"],
        cosines: Float[Tensor, "images patches texts words"],
    ) -> tuple[Float[Tensor, "images texts patches"], Bool[Tensor, "images texts patches"]]:
        """Return the scores s and which patches are kept.

        `units`: the patches as unit vectors; `cosines`: theirs with the words, or with the mean
        word as the only one.
        """
        with torch.no_grad():
            if self.typicality:
                mean = unit(mean_patch(images.patches, images.mask))
                typical = units @ mean.unsqueeze(-1)  # (V, N, 1)
                cosines = cosines + self.typicality * typical.unsqueeze(-1)
            if self.relevance == "words":
                real = cosines
                if images.mask is not None:
                    real = cosines.masked_fill(~images.mask[..., None, None], -torch.inf)
                cosines = cosines - real.amax(1, keepdim=True)
            score = cosines.amax(-1).transpose(1, 2)
            num_patches = units.shape[1]
            if images.mask is None:
                return score, exact_top_k(score, self.num_kept(num_patches))
            counts = torch.tensor([self.num_kept(n) for n in range(num_patches + 1)])
            budget = counts.to(score.device)[images.mask.sum(1)]
            mask = images.mask.unsqueeze(1).expand(score.shape)
            return score, exact_top_k(score, budget.unsqueeze(1).expand(score.shape[:2]), mask)

    def _score(
        self, images: Images, units: Tensor, weights: Tensor, directions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the late scores (R, T), the scores of the patches and the kept ones (R, T, N)."""
        patches = unit(images.patches)
        by_words = self.relevance == "words"
        ranked = exact_cosines(patches, units if by_words else directions.unsqueeze(1))
        score, kept = self.select(images, patches, ranked)
        by_patch = kept.transpose(1, 2)  # (R, N, T)
        per_word, per_patch = best_matches(patches, units, by_patch, ranked if by_words else None)
        of_words = (wide(per_word) * weights).sum(-1)
        total = torch.where(by_patch, wide(per_patch), 0.0).sum(1)
        return of_words + total / by_patch.sum(1).clamp_min(1), score, kept

    def image_vectors(self, images: Images) -> Float[Tensor, "images dim"]:
        """Return the unit vector of each image, of g."""
        mean = mean_patch(images.patches, images.mask)
        cls = mean if images.cls is None else wide(images.cls)
        return unit(self.image_proj(torch.cat([cls, mean], -1)))

    def text_vectors(self, texts: Texts) -> Float[Tensor, "texts dim"]:
        """Return the unit vector of each text, of g."""
        mean = _mean_word(texts.words, self.weights(texts.words))
        return unit(self.text_proj(mean))

    def weights(self, words: Words) -> Float[Tensor, "texts words"]:
        """Return the share of every word in its text; 0 in padding."""
        if self.word_weight is None:
            return words.mask / words.lengths.unsqueeze(-1)
        logits = wide(self.word_weight(wide(words.vectors)).squeeze(-1))
        return logits.masked_fill(~words.mask, -torch.inf).softmax(-1)


def _mean_word(words: Words, weights: Tensor) -> Float[Tensor, "texts dim"]:
    real = wide(words.vectors).masked_fill(~words.mask.unsqueeze(-1), 0.0)
    return (real * weights.unsqueeze(-1)).sum(1)
