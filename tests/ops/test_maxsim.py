"""MaxSim against a loop."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eligo.ops import maxsim, maxsim_pieces
from strategies import Ragged, quick, ragged, rows


def oracle(words: torch.Tensor, patches: torch.Tensor) -> tuple[list[float], list[float]]:
    """Maxima over real words and patches only."""
    table = [[sum((w * p).tolist()) for p in patches] for w in words]
    per_word = [max(row) if row else 0.0 for row in table]
    per_patch = [max(row[j] for row in table) if table else 0.0 for j in range(len(patches))]
    return per_word, per_patch


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@quick
@given(ragged(), st.integers(0, 5), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_equals_loop(case: Ragged, num_words: int, two_sided: bool, dtype: torch.dtype):
    batch = case.scores.shape[:-1]
    patches = case.randn(3).to(dtype)
    words = torch.randn(*batch, num_words, 3, generator=case.generator).to(dtype)
    word_mask = torch.rand(*batch, num_words, generator=case.generator) < 0.7
    score = maxsim(words, patches, word_mask, case.mask, two_sided=two_sided)
    assert score.dtype == torch.float32
    assert score.shape == batch
    similarity = words.float() @ patches.float().transpose(-1, -2)
    pieces = maxsim_pieces(similarity, word_mask, case.mask)
    for i, (w_mask, p_mask) in enumerate(zip(rows(word_mask), rows(case.mask), strict=True)):
        per_word, per_patch = oracle(
            rows(words.float(), 2)[i][w_mask], rows(patches.float(), 2)[i][p_mask]
        )
        expected = mean(per_word) + (mean(per_patch) if two_sided else 0.0)
        torch.testing.assert_close(score.flatten()[i], torch.tensor(expected), atol=1e-5, rtol=1e-5)
        for piece, values, mask in zip(
            pieces, (per_word, per_patch), (w_mask, p_mask), strict=True
        ):
            found = rows(piece)[i]
            torch.testing.assert_close(found[mask], torch.tensor(values), atol=1e-5, rtol=1e-5)
            assert found[~mask].eq(0).all()


def test_all_pairs_by_broadcasting():
    texts, images = torch.randn(1, 3, 4, 8), torch.randn(2, 1, 6, 8)
    word_mask = torch.tensor([[[True] * 4, [True, True, False, False], [False] * 4]])
    scores = maxsim(texts, images, word_mask, two_sided=True)
    assert scores.shape == (2, 3)
    for i in range(2):
        for t in range(3):
            one = maxsim(texts[0, t], images[i, 0], word_mask[0, t], two_sided=True)
            torch.testing.assert_close(scores[i, t], one)


def test_negative_maxima_are_not_floored_by_padding():
    words, patches = torch.ones(1, 2), -torch.ones(3, 2)
    mask = torch.tensor([True, True, False])
    assert maxsim(words, patches, None, mask, two_sided=True).item() == -4.0


def test_nan_padding_reaches_neither_score_nor_gradient():
    words, patches = torch.randn(4, 3), torch.randn(5, 3)
    word_mask, patch_mask = torch.arange(4) < 2, torch.arange(5) < 3
    expected = maxsim(words[:2], patches[:3], two_sided=True)
    words[2:], patches[3:] = torch.nan, torch.nan
    words.requires_grad_()
    patches.requires_grad_()
    score = maxsim(words, patches, word_mask, patch_mask, two_sided=True)
    torch.testing.assert_close(score, expected)
    score.backward()
    assert words.grad is not None
    assert patches.grad is not None
    assert words.grad.isfinite().all()
    assert patches.grad.isfinite().all()
    assert words.grad[:2].ne(0).all()
