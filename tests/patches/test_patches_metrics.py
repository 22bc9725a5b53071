"""Metrics against brute force and torchmetrics: ties, several positives, no positive."""

import pytest
import torch
from torchmetrics.functional.retrieval import retrieval_hit_rate, retrieval_recall

from eligo.errors import InputError
from eligo.patches import coco_folds, retrieval_metrics


def brute_force(scores, positive):
    """Ranks of the best positive, all ties before it; recalls of all positives."""
    ranks = []
    for row, marked in zip(scores.tolist(), positive.tolist(), strict=True):
        best = max((s for s, m in zip(row, marked, strict=True) if m), default=None)
        above = sum(not m and s >= best for s, m in zip(row, marked, strict=True)) if best else -1
        ranks.append(-1 if best is None else above)
    return ranks


@pytest.mark.parametrize("levels", [4, 10**6])
def test_ranks_match_brute_force(levels):
    scores = torch.randint(1, levels, (15, 40)).float()
    positive = torch.rand(15, 40) < 0.1
    positive[3] = False  # a query without a positive
    positive[0, 0] = True
    found = retrieval_metrics(scores, positive)
    assert found.image_to_text.ranks.tolist() == brute_force(scores, positive)
    assert found.text_to_image.ranks.tolist() == brute_force(scores.T, positive.T)
    assert found.image_to_text.ranks[3] == -1
    valid = found.image_to_text.ranks[found.image_to_text.ranks >= 0].float()
    assert found.image_to_text.mean_rank == pytest.approx(float(valid.mean()) + 1)
    assert found.image_to_text.any_hit[5] == pytest.approx(100 * float((valid < 5).float().mean()))


def test_recalls_match_torchmetrics():
    scores = torch.randperm(12 * 30).view(12, 30).float()
    positive = torch.rand(12, 30) < 0.2
    positive[:, 0] = True
    found = retrieval_metrics(scores, positive).image_to_text
    for k in (1, 5, 10):
        rows = list(zip(scores, positive, strict=True))
        hits = [retrieval_hit_rate(s, p, top_k=k) for s, p in rows]
        recalls = [retrieval_recall(s, p, top_k=k) for s, p in rows]
        assert found.any_hit[k] == pytest.approx(100 * float(torch.stack(hits).mean()))
        assert found.mean_recall[k] == pytest.approx(100 * float(torch.stack(recalls).mean()))


def test_ties_count_against_the_model():
    found = retrieval_metrics(torch.zeros(10, 50))
    assert found.rsum == 100  # with ten images, every rank is within the first ten
    assert found.text_to_image.ranks.tolist() == [9] * 50
    assert found.image_to_text.mean_recall[10] == 0


def test_coco_folds_by_hand():
    scores = torch.randn(10, 50)
    folds = coco_folds(scores)
    blocks = [retrieval_metrics(scores[2 * f : 2 * f + 2, 10 * f : 10 * f + 10]) for f in range(5)]
    assert folds["rsum"] == pytest.approx(sum(block.rsum for block in blocks) / 5)
    assert folds["t2i_r1"] == pytest.approx(
        sum(block.text_to_image.any_hit[1] for block in blocks) / 5
    )


def test_invalid_input_is_refused():
    with pytest.raises(InputError, match="captions per image"):
        retrieval_metrics(torch.zeros(3, 4))
    with pytest.raises(InputError, match="marks no pair"):
        retrieval_metrics(torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="NaN"):
        retrieval_metrics(torch.full((2, 10), torch.nan))
    with pytest.raises(InputError, match="folds"):
        coco_folds(torch.zeros(3, 15))
