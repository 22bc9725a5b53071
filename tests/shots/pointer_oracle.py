"""The pointer selectors by their definition: one row, one step, one candidate at a time."""

import math

import torch
from shot_cases import Case
from torch import Tensor, nn
from torch.nn import functional as F

from eligo.shots.model.pointer import PointerSelector


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def given(model, vectors: Tensor) -> Tensor:
    """Vectors as the model reads them: of unit length, if it adds to their cosine."""
    return vectors / vectors.norm(dim=-1, keepdim=True) if model.config.residual else vectors


def first_query(model, query: Tensor, candidates: Tensor) -> Tensor:
    """After input_proj and, for V2, torch's own attention with the same weights."""
    query, candidates = given(model, query), given(model, candidates)
    hidden = model.input_proj.weight @ query
    if model.look is None or not len(candidates):
        return hidden if model.look is None else model.look.norm(hidden)
    ours = model.look.attention
    dim = hidden.shape[0]
    theirs = nn.MultiheadAttention(dim, ours.num_heads, batch_first=True)
    parts = (ours.query_proj, ours.key_proj, ours.value_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        theirs.out_proj.bias.copy_(ours.out_proj.bias)
    keys = (candidates @ model.input_proj.weight.T)[None]
    attended = theirs(hidden[None, None], keys, keys)[0][0, 0]
    return model.look.norm(hidden + attended)


def moved(model, hidden: Tensor, candidate: Tensor) -> Tensor:
    if model.state is None:
        return hidden
    pick = model.input_proj.weight @ given(model, candidate)
    if hasattr(model.state, "cell"):
        return model.state.cell(pick[None], hidden[None])[0]
    linear = model.state.linear
    return hidden + torch.tanh(linear.weight @ torch.cat([hidden, pick]) + linear.bias) * pick


def logit(model, hidden: Tensor, query: Tensor, candidate: Tensor) -> Tensor:
    if model.config.residual:
        q = model.query_proj.weight @ hidden
        c = model.cand_proj.weight @ (model.input_proj.weight @ unit(candidate))
        return (unit(query) @ unit(candidate) + q @ c) / model.config.temperature
    q = unit(model.query_proj.weight @ hidden)
    c = unit(model.cand_proj.weight @ (model.input_proj.weight @ candidate))
    return (q @ c) / model.config.temperature


def row_steps(model: PointerSelector, case: Case, row: int):
    """Per real step: (step, label, left, logits of what is left), in order of choice."""
    real = case.mask[row].nonzero().flatten().tolist()
    hidden = first_query(model, case.query[row], case.candidates[row][real])
    left, found = list(real), []
    for step, label in enumerate(case.labels[row].tolist()):
        if label not in left:
            continue
        query, vectors = case.query[row], case.candidates[row]
        logits = torch.stack([logit(model, hidden, query, vectors[i]) for i in left])
        found.append((step, label, list(left), logits))
        hidden = moved(model, hidden, case.candidates[row, label])
        left.remove(label)
    return found


def loop_loss(model: PointerSelector, case: Case) -> Tensor:
    """Smoothed cross-entropy: `F.cross_entropy` on the classes that are left."""
    total, weight = torch.zeros(()), 0.0
    for row in range(len(case.labels)):
        terms = [
            F.cross_entropy(
                logits, torch.tensor(left.index(label)), label_smoothing=model.label_smoothing
            )
            for _, label, left, logits in row_steps(model, case, row)
        ]
        if terms:
            total = total + case.weights[row] * torch.stack(terms).mean()
            weight += float(case.weights[row])
    return total / weight if weight else total


def loop_ranking(model: PointerSelector, case: Case, *, dense: bool) -> Tensor:
    total, weight = torch.zeros(()), 0.0
    for row in range(len(case.labels)):
        steps = row_steps(model, case, row)
        labels = [label for _, label, _, _ in steps]
        beam = {label: float(case.beam_scores[row, step]) for step, label, _, _ in steps}
        terms = []
        for step, label, left, logits in steps:
            if dense:
                scores = {i: float(case.step_scores[row, step, i]) for i in left}
            else:
                scores = {i: beam.get(i, math.nan) for i in left}
            term = one_ranking(
                model.config, dict(zip(left, logits, strict=True)), label, labels, scores, dense
            )
            if term is not None:
                terms.append(term)
        if terms:
            total = total + case.weights[row] * torch.stack(terms).mean()
            weight += float(case.weights[row])
    return total / weight if weight else total


def one_ranking(config, logits: dict, label: int, labels: list, scores: dict, dense: bool):
    own = scores[label]
    others = [i for i in logits if i != label]
    if config.ranking_loss_type == "regression":
        errors = [logits[i] - scores[i] for i in logits if not math.isnan(scores[i])]
        if len(errors) < 2:
            return None
        return torch.stack(errors).var(unbiased=False)
    if config.ranking_form == "documented":
        if not others:
            return None
        if config.ranking_loss_type == "pairwise":
            hardest = max(logits[i] for i in others)
            return torch.clamp(config.margin + hardest - logits[label], min=0)
        if math.isnan(own):
            return None
        share = min(max(1 / (1 + math.exp(-own)), 1e-6), 1 - 1e-6)
        log_p = torch.stack(list(logits.values())).log_softmax(0)
        target = [share if i == label else (1 - share) / len(others) for i in logits]
        return sum(lp.exp() * (lp - math.log(t)) for lp, t in zip(log_p, target, strict=True))
    if config.ranking_loss_type == "pairwise":
        negatives = [
            i
            for i in others
            if i not in labels and (scores[i] < own if dense else math.isnan(scores[i]))
        ]
        if not negatives:
            return None
        hinges = [torch.clamp(config.margin + logits[i] - logits[label], min=0) for i in negatives]
        return torch.stack(hinges).mean()
    scored = [i for i in logits if not math.isnan(scores[i])]
    if len(scored) < 2:
        return None
    values = torch.tensor([scores[i] for i in scored], dtype=torch.float64)
    std = values.std(unbiased=False)
    if std < 1e-6:
        return None
    target = ((values - values.mean()) / std / config.target_temperature).softmax(0).float()
    log_p = torch.stack([logits[i] for i in scored]).log_softmax(0)
    return (target * (target.log() - log_p)).sum()
