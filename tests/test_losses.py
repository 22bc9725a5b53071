"""Losses against loops, torch and NumPy; gradients, masks and precision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from eligo import losses, ops
from eligo.errors import InputError
from strategies import Ragged, quick, ragged, rows

CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def log_softmax(scores: list[float]) -> list[float]:
    total = math.log(sum(math.exp(s) for s in scores))
    return [s - total for s in scores]


def alive(loss: Tensor, *inputs: Tensor) -> None:
    """Every input has a finite, non-zero gradient."""
    for gradient in torch.autograd.grad(loss.sum(), inputs):
        assert gradient.isfinite().all()
        assert gradient.ne(0).any()


# Smoothed cross-entropy ---------------------------------------------------------------------


@quick
@given(ragged(min_candidates=1), st.sampled_from([0.0, 0.1, 0.2]))
def test_smoothed_cross_entropy_equals_torch_on_compacted_classes(case: Ragged, smoothing: float):
    scores = case.scores.clone().requires_grad_()
    labels = torch.randint(-1, scores.shape[-1], scores.shape[:-1], generator=case.generator)
    result = losses.smoothed_cross_entropy(scores, labels, case.mask, smoothing)
    assert result.shape == labels.shape
    for loss, row, label, mask in zip(
        result.flatten(), rows(scores), labels.flatten().tolist(), rows(case.mask), strict=True
    ):
        if label < 0 or not mask[label]:
            assert loss.item() == 0.0
            continue
        place = torch.tensor(int(mask[:label].sum()))
        expected = F.cross_entropy(row[mask], place, label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected, **CLOSE)
    (gradient,) = torch.autograd.grad(result.sum(), scores)
    assert gradient.isfinite().all()
    assert gradient[~case.mask].eq(0).all()


def test_smoothed_cross_entropy_learns_from_every_valid_class():
    logits = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    loss = losses.smoothed_cross_entropy(logits, torch.tensor([1, 0]), mask, 0.1)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.ne(0).equal(mask)


def test_smoothed_cross_entropy_reads_no_padding_and_no_large_fill():
    logits = torch.tensor([[1.0, 2.0, torch.nan], [torch.nan] * 3], requires_grad=True)
    mask = torch.tensor([[True, True, False], [False] * 3])
    loss = losses.smoothed_cross_entropy(logits, torch.tensor([0, 2]), mask, 0.2)
    assert loss[1] == 0
    assert loss.max() < 3
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("label", "smoothing"), [(3, 0.1), (-2, 0.1), (0, 1.0), (0, -0.1)])
def test_smoothed_cross_entropy_refuses_invalid_input(label: int, smoothing: float):
    with pytest.raises(InputError, match="expected"):
        losses.smoothed_cross_entropy(torch.zeros(1, 3), torch.tensor([label]), None, smoothing)


# Plackett-Luce and ListMLE --------------------------------------------------------------------


def plackett_luce_oracle(
    scores: list[float], order: list[int], mask: list[bool], smoothing: float
) -> list[float]:
    left = [i for i, valid in enumerate(mask) if valid]
    result = []
    for pick in order:
        if pick not in left:
            result.append(0.0)
            continue
        log_p = log_softmax([scores[i] for i in left])
        mean = sum(log_p) / len(log_p)
        result.append(-(1 - smoothing) * log_p[left.index(pick)] - smoothing * mean)
        left.remove(pick)
    return result


@quick
@given(ragged(min_candidates=1), st.integers(0, 9), st.sampled_from([0.0, 0.2]))
def test_plackett_luce_equals_loop(case: Ragged, steps: int, smoothing: float):
    """Orders that include -1, masked and repeated picks."""
    order = torch.randint(
        -1, case.scores.shape[-1], (*case.scores.shape[:-1], steps), generator=case.generator
    )
    result = losses.plackett_luce(case.scores, order, case.mask, smoothing)
    for row, scores, picks, mask in zip(
        rows(result), rows(case.scores), rows(order), rows(case.mask), strict=True
    ):
        expected = plackett_luce_oracle(scores.tolist(), picks.tolist(), mask.tolist(), smoothing)
        torch.testing.assert_close(row, torch.tensor(expected), **CLOSE)
    if not smoothing:
        total = losses.list_mle(case.scores, order, case.mask)
        torch.testing.assert_close(total, result.sum(-1))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_plackett_luce_has_the_gradient_of_the_step_by_step_form(smoothing: float):
    scores = (torch.randn(3, 6) * 3).requires_grad_()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1, 4:] = False
    mask[2] = False
    order = torch.tensor([[3, 0, 5], [1, -1, 2], [0, 1, 2]])
    weights = torch.randn(3, 3)
    closed = (losses.plackett_luce(scores, order, mask, smoothing) * weights).sum()
    steps = []
    for t in range(3):
        chosen = ops.kept_mask(order[:, :t], 6)
        steps.append(losses.smoothed_cross_entropy(scores, order[:, t], mask & ~chosen, smoothing))
    looped = (torch.stack(steps, -1) * weights).sum()
    torch.testing.assert_close(closed, looped, **CLOSE)
    expected, gradient = (torch.autograd.grad(loss, scores)[0] for loss in (looped, closed))
    torch.testing.assert_close(gradient, expected, **CLOSE)
    assert gradient[:2][mask[:2]].ne(0).all()


def test_full_list_mle_is_a_distribution_over_permutations():
    import itertools

    scores = torch.randn(4)
    orders = torch.tensor(list(itertools.permutations(range(4))))
    total = (-losses.list_mle(scores.expand(24, 4), orders)).exp().sum()
    assert total.item() == pytest.approx(1.0, abs=1e-5)


def test_list_mle_of_extreme_scores_is_finite():
    scores = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    loss = losses.list_mle(scores, torch.tensor([1, 0, 2]))
    assert loss.item() == pytest.approx(2e4, rel=1e-4)
    alive(loss, scores)


# Listwise KL --------------------------------------------------------------------------------


@quick
@given(ragged(), st.booleans())
def test_listwise_kl_equals_numpy(case: Ragged, reverse: bool):
    target = ops.masked_softmax(case.randn(), case.mask)
    result = losses.listwise_kl(case.scores, target, case.mask, reverse=reverse)
    for loss, scores, t, mask in zip(
        result.flatten(), rows(case.scores), rows(target), rows(case.mask), strict=True
    ):
        s, t = scores[mask].double().numpy(), t[mask].double().numpy()
        p = np.exp(s) / np.exp(s).sum()
        a, b = (p, t) if reverse else (t, p)
        assert loss.item() == pytest.approx(float((a * np.log(a / b)).sum()), abs=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_listwise_kl_is_zero_at_the_target_with_a_gradient_elsewhere(reverse: bool):
    logits = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    target = ops.masked_softmax(logits.detach(), mask)
    at_target = losses.listwise_kl(logits, target, mask, reverse=reverse)
    torch.testing.assert_close(at_target, torch.zeros(2), **CLOSE)
    target = ops.masked_softmax(torch.randn(2, 5), mask)
    target[0, 0] = 0.0  # finite in both directions
    loss = losses.listwise_kl(logits, target, mask, reverse=reverse)
    assert loss.isfinite().all()
    alive(loss, logits)


def test_documented_listwise_loss_of_the_pointer_selector():
    """KL(model || target): sigmoid(beam score) on the label, the rest uniform."""
    logits, label = torch.randn(6, requires_grad=True), 2
    mask = torch.tensor([True, True, True, False, True, True])
    confidence = torch.sigmoid(torch.tensor(0.3)).clamp(1e-6, 1 - 1e-6)
    target = torch.full((6,), 1.0) * (1 - confidence) / (mask.sum() - 1)
    target[label] = confidence
    loss = losses.listwise_kl(logits, target, mask, reverse=True)
    p = logits[mask].softmax(-1)
    torch.testing.assert_close(loss, (p * (p / target[mask]).log()).sum())
    alive(loss, logits)


def test_corrected_listwise_loss_of_the_pointer_selector():
    """KL(target || model) over the scored candidates; z-scores make the target."""
    logits = torch.randn(6, requires_grad=True)
    values = torch.tensor([0.1, torch.nan, -0.2, 0.4, torch.nan, 0.0])
    scored = values.isfinite()
    known = values[scored]
    z = torch.zeros(6).masked_scatter(scored, (known - known.mean()) / known.std(correction=0))
    loss = losses.listwise_kl(logits, ops.masked_softmax(z, scored), scored)
    p, t = logits[scored].softmax(-1), z[scored].softmax(-1)
    torch.testing.assert_close(loss, (t * (t / p).log()).sum())
    alive(loss, logits)


# Pairwise -------------------------------------------------------------------------------------


@quick
@given(ragged(), st.booleans())
def test_pairwise_losses_equal_loops(case: Ragged, hardest: bool):
    positive = torch.randn(case.scores.shape[:-1], generator=case.generator)
    hinge = losses.pairwise_hinge(positive, case.scores, case.mask, margin=0.7, hardest=hardest)
    logistic = losses.pairwise_logistic(positive, case.scores, case.mask)
    for i, mask in enumerate(rows(case.mask)):
        p = positive.flatten()[i].item()
        negatives = rows(case.scores)[i][mask].tolist()
        hinges = [max(0.0, 0.7 + n - p) for n in negatives]
        mean = max(hinges, default=0.0) if hardest else sum(hinges) / max(1, len(hinges))
        assert hinge.flatten()[i].item() == pytest.approx(mean, abs=1e-5)
        logs = [math.log(1 + math.exp(n - p)) for n in negatives]
        expected = sum(logs) / max(1, len(logs))
        assert logistic.flatten()[i].item() == pytest.approx(expected, abs=1e-5)


def test_pairwise_losses_have_gradients_and_hardest_uses_one_negative():
    positive = torch.zeros(2, requires_grad=True)
    negatives = torch.tensor([[0.1, 0.5, -0.3], [0.0, 0.2, 0.1]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, True]])
    alive(losses.pairwise_hinge(positive, negatives, mask), positive, negatives)
    alive(losses.pairwise_logistic(positive, negatives, mask), positive, negatives)
    loss = losses.pairwise_hinge(positive, negatives, mask, hardest=True)
    (gradient,) = torch.autograd.grad(loss.sum(), negatives)
    assert gradient.tolist() == [[0, 1, 0], [0, 0, 1]]


# Triplet --------------------------------------------------------------------------------------


def triplet_oracle(
    similarity: np.ndarray, positive: np.ndarray, neutral: np.ndarray, margin: float, hardest: bool
) -> float:
    total = 0.0
    for i, j in np.argwhere(positive):
        excluded = positive | neutral
        row = [similarity[i, k] for k in range(similarity.shape[1]) if not excluded[i, k]]
        column = [similarity[k, j] for k in range(similarity.shape[0]) if not excluded[k, j]]
        for negatives in (row, column):
            costs = [max(0.0, margin - similarity[i, j] + n) for n in negatives]
            total += max(costs, default=0.0) if hardest else sum(costs)
    return total


@quick
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 999), st.booleans())
def test_triplet_equals_loop(images: int, texts: int, seed: int, hardest: bool):
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.randn(images, texts, generator=generator)
    positive = torch.rand(images, texts, generator=generator) < 0.4
    neutral = torch.rand(images, texts, generator=generator) < 0.2
    result = losses.hard_negative_triplet(
        similarity, positive, neutral_mask=neutral, margin=0.3, hardest=hardest
    )
    expected = triplet_oracle(similarity.numpy(), positive.numpy(), neutral.numpy(), 0.3, hardest)
    assert result.item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("hardest", [False, True])
def test_documented_triplet_is_the_diagonal_with_matching_ids_left_out(hardest: bool):
    similarity = torch.randn(5, 5, requires_grad=True)
    ids = torch.tensor([0, 1, 1, 2, 0])
    same = ids[:, None] == ids[None]
    result = losses.hard_negative_triplet(similarity, neutral_mask=same, hardest=hardest)
    diagonal = similarity.diagonal()
    rows_cost = (0.2 - diagonal[:, None] + similarity).clamp_min(0).masked_fill(same, 0)
    columns_cost = (0.2 - diagonal[None] + similarity).clamp_min(0).masked_fill(same, 0)
    if hardest:
        expected = rows_cost.amax(1).sum() + columns_cost.amax(0).sum()
    else:
        expected = rows_cost.sum() + columns_cost.sum()
    torch.testing.assert_close(result, expected)
    alive(result, similarity)


def test_triplet_needs_positives():
    with pytest.raises(InputError, match="square matrix"):
        losses.hard_negative_triplet(torch.zeros(2, 3))


# Adversarial ----------------------------------------------------------------------------------


def test_adversarial_pair_equals_binary_cross_entropy():
    real, fake = torch.randn(5, requires_grad=True), torch.randn(4, requires_grad=True)
    bce = F.binary_cross_entropy_with_logits
    generator = losses.adversarial_generator_loss(fake)
    torch.testing.assert_close(generator, bce(fake, torch.ones(4)))
    discriminator = sum(losses.adversarial_discriminator_losses(real, fake))
    torch.testing.assert_close(discriminator, bce(real, torch.ones(5)) + bce(fake, torch.zeros(4)))
    alive(generator, fake)
    alive(discriminator, real, fake)


def test_generator_gradient_does_not_saturate():
    """The generator still gets a gradient if the discriminator is certain."""
    fake = torch.full((1,), -30.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.adversarial_generator_loss(fake), fake)
    assert gradient.item() == pytest.approx(-1.0)


# All ------------------------------------------------------------------------------------------


@quick
@given(ragged(batch=(3,), min_candidates=1))
def test_losses_are_independent_of_batch_and_padding(case: Ragged):
    labels = torch.randint(0, case.scores.shape[-1], (3,), generator=case.generator)
    order = ops.top_k(case.randn(), 3)
    target = ops.masked_softmax(case.randn(), case.mask)

    def run(scores: Tensor, mask: Tensor, target: Tensor, pick=slice(None)) -> list[Tensor]:
        return [
            losses.smoothed_cross_entropy(scores, labels[pick], mask, 0.1),
            losses.plackett_luce(scores, order[pick], mask, 0.1),
            losses.list_mle(scores, order[pick], mask),
            losses.listwise_kl(scores, target, mask),
            losses.listwise_kl(scores, target, mask, reverse=True),
            losses.pairwise_hinge(scores.new_zeros(len(scores)), scores, mask),
            losses.pairwise_hinge(scores.new_zeros(len(scores)), scores, mask, hardest=True),
            losses.pairwise_logistic(scores.new_zeros(len(scores)), scores, mask),
        ]

    together = run(case.scores, case.mask, target)
    wide_scores = F.pad(case.scores, (0, 2), value=torch.nan).requires_grad_()
    padded = run(
        wide_scores,
        F.pad(case.mask, (0, 2), value=False),
        F.pad(target, (0, 2), value=torch.nan),
    )
    alone = run(case.scores[1:2], case.mask[1:2], target[1:2], slice(1, 2))
    for whole, wide, one in zip(together, padded, alone, strict=True):
        torch.testing.assert_close(wide, whole, **CLOSE)
        torch.testing.assert_close(one, whole[1:2], **CLOSE)
        (gradient,) = torch.autograd.grad(wide.sum(), wide_scores, retain_graph=True)
        assert gradient.isfinite().all()
        assert gradient[:, -2:].eq(0).all()


def test_bfloat16_logits_give_float32_losses():
    logits = torch.randn(2, 5).bfloat16()
    loss = losses.smoothed_cross_entropy(logits, torch.tensor([1, 2]))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, losses.smoothed_cross_entropy(logits.float(), torch.tensor([1, 2]))
    )
    assert losses.list_mle(logits, torch.tensor([[1, 2], [0, 3]])).dtype == torch.float32
    assert losses.pairwise_logistic(logits[:, 0], logits).dtype == torch.float32
    assert losses.hard_negative_triplet(logits[:, :2]).dtype == torch.float32
