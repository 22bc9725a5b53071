"""The shared core compiles without graph breaks or device syncs, with the same results."""

from collections.abc import Callable, Iterator

import pytest
import torch

from eligo import Selection, losses, ops
from eligo.nn import CrossAttention, SimilarityScale
from forks import run_forked
from strategies import production


@pytest.fixture(autouse=True)
def _as_in_production() -> Iterator[None]:
    torch.compiler.reset()
    with production():  # annotation checks cannot be traced
        yield
    torch.compiler.reset()


def scores_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.rand(3, 7) < 0.6
    mask[1] = False
    return torch.randn(3, 7), mask


def choose_and_fold(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    indices = ops.top_k(scores, 3, mask)
    budgets = ops.top_k(scores, mask.sum(-1) // 2, mask, width=4)
    logits = scores.unsqueeze(-2) * ops.gather(scores, indices).unsqueeze(-1)
    soft = ops.soft_assignment(logits, indices, mask)
    hard = ops.soft_assignment(logits, indices, mask, hard=True)
    folded = ops.fold(scores.unsqueeze(-1), soft, mask)
    aligned = ops.gather(scores, ops.align_right(mask, 7))
    return indices, budgets, hard, folded, ops.unfold(folded, soft), aligned


def relax(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ops.straight_through_top_k(scores, 2, 0.5, mask), ops.masked_softmax(scores, mask)


def merge_twice(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    tokens = torch.stack([scores, scores.sin(), scores.cos()], -1)
    first = ops.bipartite_match(tokens, 2, mask)
    merged, sizes = ops.merge(tokens, first)
    second = ops.bipartite_match(merged, 1, first.kept >= 0)
    merged, sizes = ops.merge(merged, second, sizes)
    pair = ops.maxsim(tokens, merged, mask, second.kept >= 0, two_sided=True)
    return ops.unmerge(ops.unmerge(merged, second), first), sizes, pair


def all_losses(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = ops.top_k(scores, 3, mask)
    return (
        losses.smoothed_cross_entropy(scores, order[:, 0], mask, 0.1),
        losses.plackett_luce(scores, order, mask, 0.1),
        losses.listwise_kl(scores, ops.masked_softmax(-scores, mask), mask, reverse=True),
        losses.pairwise_hinge(scores[:, 0], scores, mask, hardest=True),
        losses.hard_negative_triplet(scores, mask),
        losses.adversarial_generator_loss(scores),
    )


@pytest.mark.parametrize("function", [choose_and_fold, relax, merge_twice, all_losses])
def test_functions_compile(function: Callable):
    scores, mask = scores_and_mask()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    results = []
    for run in (function, compiled):
        leaf = scores.clone().requires_grad_()
        outputs = run(leaf, mask)
        total = sum(out.sum() for out in outputs if out.requires_grad)
        results.append([*outputs, torch.autograd.grad(total, leaf)[0]])
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, eager, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("return_map", [False, True])
def test_cross_attention_compiles(similarity: str, return_map: bool):
    scale = SimilarityScale(similarity, learnable=True, init=5.0)
    module = CrossAttention(8, 6, 16, 4, scale=scale)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    mask = torch.tensor([[True, True, False], [False, False, False]])
    inputs = (torch.randn(2, 4, 8), torch.randn(2, 3, 6), mask)
    eager, traced = (f(*inputs, return_map=return_map) for f in (module, compiled))
    torch.testing.assert_close(traced, eager)


def select(scores: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    selection = Selection.top_k(scores, 3, mask).in_order()
    values = scores.unsqueeze(-1)
    return selection.indices, selection.unfold(selection.fold(values)), selection.kept_mask


def compile_selection() -> None:
    scores, mask = torch.randn(3, 7), torch.rand(3, 7) < 0.5
    compiled = torch.compile(select, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, mask), select(scores, mask))


def test_selection_compiles():
    """In a new process: the checked __init__ of a dataclass cannot be disabled."""
    run_forked(compile_selection, ())
