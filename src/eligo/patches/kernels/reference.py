"""The kernel `reference`: the definition as a plain loop over texts, the oracle of the others.

With `compat` it is the published forward, module by module. Without, the same steps over all N
patches, weighted by D (`d e^l / sum d e^l`), so that dropped patches have a gradient too.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eligo.patches.kernels.interface import Matches, Parts, PatchDecision
from eligo.patches.model.aggregation import DualTokenAggregation
from eligo.patches.model.functional import unit, weighted_softmax, wide
from eligo.patches.model.inputs import Images, Texts
from eligo.patches.model.token_sparse import TokenSparse, combine, cosine_to_mean


def match(parts: Parts, images: Images, texts: Texts, *, decisions: bool) -> Matches:
    """Score every text against all images, one text after the other."""
    patches = wide(images.patches)  # (V, N, C)
    with torch.no_grad():
        units = unit(patches)  # (V, N, C)
        s_im = cosine_to_mean(patches, images.mask)  # (V, N)
        # s_dt: (V, N, C), (V, C) -> (V, N)
        s_dt = None if images.dense is None else torch.einsum("vnc,vc->vn", units, images.dense)
    selects_dense = parts.selects_dense(images.dense is not None or texts.dense is not None)
    num_texts = len(texts.words.mask)
    # With `compat`, TokenSparse draws its Gumbel noise itself, in the same order.
    noise = (None, None) if parts.compat else parts.draw(s_im, num_texts, selects_dense)
    scores, shares, sparse, dense = [], [], [], []
    for text in range(num_texts):
        with torch.no_grad():
            s_st = units @ unit(wide(texts.words.of(text)).mean(0))  # (V, N, C) @ (C,) -> (V, N)
            if texts.dense is not None:
                s_dt = units @ unit(wide(texts.dense.of(text)).mean(0))  # (V, N)
        branch = _Branch(parts, patches, images, [None if n is None else n[:, text] for n in noise])
        # folded (V, S, C), extra (V, 1, C), decision (V, N)
        folded, extra, first = branch.select(parts.sparse, s_im, s_st, s_dt, 0)
        chosen = [first]
        words = unit(texts.words.of(text))  # (M, C)
        if not selects_dense:
            score = branch.align(folded, extra, words, chosen)  # (V,)
        else:
            assert s_dt is not None
            more, other_extra, second = branch.select(parts.dense, s_im, s_dt, s_st, 1)
            chosen.append(second)
            if parts.paper:
                folded, extra = folded + more, (extra + other_extra) / 2  # (V, S, C), (V, 1, C)
                score = branch.align(folded, extra, words, chosen)  # (V,)
            else:
                other = words if texts.dense is None else unit(texts.dense.of(text))  # (M, C)
                score = branch.align(folded, extra, words, chosen[:1])  # (V,)
                score = score + branch.align(more, other_extra, other, [second])  # (V,)
        scores.append(score)
        shares.append(torch.stack([decision.share(images.mask) for decision in chosen]).mean(0))
        sparse.append(chosen[0])
        dense.extend(chosen[1:])
    return Matches(
        torch.stack(scores, 1),  # (V, T)
        torch.stack(shares, 1),  # (V, T)
        _stack(sparse) if decisions else None,
        _stack(dense) if decisions and selects_dense else None,
    )


def match_pairs(
    parts: Parts,
    images: Images,
    texts: Texts,
    image_ids: Int[Tensor, " pairs"],
    text_ids: Int[Tensor, " pairs"],
) -> Float[Tensor, " pairs"]:
    """Score the given pairs one after the other."""
    scores = []
    for image, text in zip(image_ids.tolist(), text_ids.tolist(), strict=True):
        pair = images[image : image + 1], texts[text : text + 1]
        scores.append(match(parts, *pair, decisions=False).scores[0, 0])
    return torch.stack(scores)


class _Branch:
    """One text against all images."""

    def __init__(
        self, parts: Parts, patches: Tensor, images: Images, noise: list[Tensor | None]
    ) -> None:
        self.parts, self.patches, self.images, self.noise = parts, patches, images, noise

    def select(
        self, net: TokenSparse, x: Tensor, y: Tensor, y_dense: Tensor | None, index: int
    ) -> tuple[Tensor, Tensor, PatchDecision]:
        """Select with `net` and fold: (V, S, C), (V, 1, C), and score and D (V, N)."""
        parts, patches = self.parts, self.patches
        # (V, N)
        score = combine(
            net.predict(patches), x, y, y_dense, parts.beta, self.images.mask, net.typicality
        )
        if parts.compat:
            kept, extra, live = net(  # (V, K, C), (V, 1, C), (V, N)
                patches, x, y, y_dense, parts.beta, parts.gumbel, parts.temperature
            )
            return self._fold(kept, None, index), extra, PatchDecision(score, live)
        live = parts.decide(  # (V, N)
            score,
            parts.num_kept(patches.shape[1], self.images.mask),
            self.images.mask,
            self.noise[index],
            guides=1 if y_dense is None else 2,
        )
        dropped = 1 - live if self.images.mask is None else (1 - live) * self.images.mask
        extra = weighted_softmax(score, dropped).unsqueeze(1) @ patches  # (V, 1, C)
        return self._fold(patches, live, index), extra, PatchDecision(score, live)

    def align(
        self, folded: Tensor, extra: Tensor, words: Tensor, chosen: list[PatchDecision]
    ) -> Tensor:
        """Return HRPA of [CLS], slots and extra token with the words: (V,)."""
        cls = self.images.cls
        tokens = [folded, extra] if cls is None else [wide(cls).unsqueeze(1), folded, extra]
        patches = unit(torch.cat(tokens, 1))  # (V, P, C)
        mask = None
        if self.parts.may_drop_nothing(self.patches.shape[1], self.images.mask):
            mask = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device)
            mask[:, -1] = torch.stack([self._drops(decision) for decision in chosen]).any(0)
        return self.parts.hrpa(patches, words.expand(len(patches), -1, -1), mask).squeeze(1)

    def _fold(self, tokens: Tensor, policy: Tensor | None, index: int) -> Tensor:
        net = self.parts.aggregation
        if isinstance(net, DualTokenAggregation):
            weights = (net.weight_sparse, net.weight_dense)[index]
            return net.fold(weights, tokens, policy)
        return net(tokens, policy)

    def _drops(self, decision: PatchDecision) -> Tensor:
        dropped = decision.live < 0.5
        return (dropped if self.images.mask is None else dropped & self.images.mask).any(-1)


def _stack(decisions: list[PatchDecision]) -> PatchDecision:
    return PatchDecision(*(torch.stack(parts, 1) for parts in zip(*decisions, strict=True)))
