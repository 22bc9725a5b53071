"""The documented network from its definition: one pair at a time, in float64.

Shares no code with eligo: no kernel, no op, no module. Autograd goes through it.
"""

import math

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def min_max(a: Tensor) -> Tensor:
    return (a - a.min()) / (a.max() - a.min() + 1e-8)


def linear(sd: dict[str, Tensor], key: str, x: Tensor) -> Tensor:
    return x @ sd[f"{key}.weight"].T + sd[f"{key}.bias"]


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def select(sd, name, patches, x, y, y_dense, uniform, *, ratio, beta, paper, tau):
    """Kept indices best first, extra token and mask of one image."""
    if paper:
        hidden = gelu(linear(sd, f"{name}.score_predictor.0", patches))
        p = torch.sigmoid(linear(sd, f"{name}.score_predictor.2", hidden)).squeeze(-1)
        guide = min_max(y) + 2 * min_max(x)
        guide = guide if y_dense is None else guide + min_max(y_dense)
        score = (1 - 2 * beta) * p + beta * guide
    else:
        score = x + y
    num_kept = max(1, math.ceil(len(patches) * ratio))
    order = sorted(range(len(patches)), key=lambda i: (-score[i].item(), i))
    kept, dropped = order[:num_kept], order[num_kept:]
    extra = torch.zeros_like(patches[0])
    if dropped:
        extra = torch.softmax(score[dropped], 0) @ patches[dropped]
    mask = torch.zeros_like(score)
    mask[kept] = 1
    if uniform is not None:
        noise = -torch.log(-torch.log(uniform + 1e-9) + 1e-9)
        soft = torch.softmax((score + noise) / tau, 0)
        mask = mask + (soft - soft.detach())
    return kept, extra, mask


def fold(sd, name, x):
    """One aggregation net on one image's kept patches."""
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    normed = normed * sd[f"{name}.0.weight"] + sd[f"{name}.0.bias"]
    logits = linear(sd, f"{name}.3", gelu(linear(sd, f"{name}.1", normed)))
    return torch.softmax(logits.T * sd["aggr_net.scale"].squeeze(), 1) @ x


def align(sd, tokens, words, *, paper, top_k):
    similarity = unit(words) @ unit(tokens).T
    if not paper:
        similarity = torch.where(similarity > 0, similarity, 0.1 * similarity)
    score = torch.zeros((), dtype=tokens.dtype)
    for maxima in (similarity.max(1).values, similarity.max(0).values):
        score = score + maxima.mean()
        if paper:
            top = maxima.sort(descending=True).values[:top_k]
            top = torch.cat([top, top.new_zeros(top_k - len(top))])
            hidden = gelu(linear(sd, "hrpa.relevance_mlp.0", top))
            score = score + linear(sd, "hrpa.relevance_mlp.2", hidden).squeeze()
    return score


def score_pair(
    sd, image, words, dense, draws=(None, None), *, paper, dual, ratio, beta, top_k, tau
):
    """The documented score of one image (tokens, C) and one text, and the masks."""
    side = math.isqrt(len(image))
    cls, patches = (image[:0], image) if side * side == len(image) else (image[:1], image[1:])
    with torch.no_grad():
        units = unit(patches)
        s_im = units @ unit(patches.mean(0))
        s_st = units @ unit(words.mean(0))
        s_dt = None if dense is None else units @ unit(dense.mean(0))
    rules = {"ratio": ratio, "beta": beta, "paper": paper, "tau": tau}
    kept, extra, mask = select(sd, "sparse_net_cap", patches, s_im, s_st, s_dt, draws[0], **rules)
    masks = [mask]
    second = None
    if dense is not None and (dual or not paper):
        second = select(sd, "sparse_net_long", patches, s_im, s_dt, s_st, draws[1], **rules)
        masks.append(second[2])
    net = "aggr_net.weight_sparse" if paper and dual else "aggr_net.weight"
    folded = fold(sd, net, patches[kept])
    if not paper:
        tokens = torch.cat([cls, folded, extra[None]])
        score = align(sd, tokens, words, paper=False, top_k=top_k)
        if second is not None:
            tokens = torch.cat([cls, fold(sd, net, patches[second[0]]), second[1][None]])
            score = score + align(sd, tokens, dense, paper=False, top_k=top_k)
    else:
        if second is not None:
            folded = folded + fold(sd, "aggr_net.weight_dense", patches[second[0]])
            extra = (extra + second[1]) / 2
        tokens = torch.cat([cls, folded, extra[None]])
        score = align(sd, tokens, words, paper=True, top_k=top_k)
    return score, masks


def score_all(sd, images, words, lengths, dense, dense_lengths, noise=None, **rules):
    """All pairs: scores (V, T) and the masks (T, V, N) that training returns.

    `noise`: the recorded uniform draws, each (V, N), per text the sparse and then the dense one.
    """
    noise = None if noise is None else iter(noise)
    selects_dense = dense is not None and (rules["dual"] or not rules["paper"])
    columns, rows = [], []
    for j, text in enumerate(words):
        long = None if dense is None else dense[j, : dense_lengths[j]]
        draws = [None, None]
        if noise is not None:
            draws = [next(noise), next(noise) if selects_dense else None]
        pairs = [
            score_pair(
                sd,
                image,
                text[: lengths[j]],
                long,
                [None if draw is None else draw[i] for draw in draws],
                **rules,
            )
            for i, image in enumerate(images)
        ]
        columns.append(torch.stack([score for score, _ in pairs]))
        rows.append(
            [torch.stack(kind) for kind in zip(*(masks for _, masks in pairs), strict=True)]
        )
    masks = [torch.stack(kind) for kind in zip(*rows, strict=True)]
    return torch.stack(columns, 1), tuple(masks if rules["paper"] else [sum(masks)])
