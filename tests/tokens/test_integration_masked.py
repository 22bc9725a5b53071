"""The masked (training) form equals pruning, and gives gradients to all scores."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hosts import FAMILIES, IMAGE, build, shared
from test_integration import make_plan, rows_of
from token_truth import ByContent
from torch import Tensor

from eligo import ops
from eligo.errors import EligoError
from eligo.selection import Selection
from eligo.tokens.hooks.masking import ClampDropped, masking
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.reducer import ReducerContext, SoftCut
from eligo.tokens.trace import answer_loss


@dataclass
class Merge:
    features: Tensor
    selection: Selection
    key_bias: Tensor


class Scores:
    """A relaxer with one learned direction per stage."""

    def __init__(self, widths: dict[int, int], mode: str = "straight_through") -> None:
        torch.manual_seed(3)
        self.weights = {
            layer: torch.randn(width, requires_grad=True) for layer, width in widths.items()
        }
        self.mode = mode
        self.masks: dict[int, Tensor] = {}
        self.contexts: dict[int, ReducerContext] = {}

    def merge(self, context: ReducerContext, budget: Tensor) -> Merge:
        scores = (context.features @ self.weights[0]).masked_fill(~context.mask, 0.0)
        keep = ops.relaxed_top_k(scores, budget, 1.0, context.mask)
        selection = Selection.top_k(scores, budget, context.mask).in_order()
        gate = selection.gather(keep)
        return Merge(
            selection.gather(context.features), selection, torch.log1p(gate - gate.detach())
        )

    def cut(self, layer: int, context: ReducerContext, budget: Tensor) -> SoftCut:
        self.contexts[layer] = context
        scores = (context.features.detach() @ self.weights[layer]).masked_fill(~context.mask, 0.0)
        keep = ops.relaxed_top_k(scores, budget, 1.0, context.mask)
        selection = Selection.top_k(scores, budget, context.mask)
        hard = ops.straight_through(selection.kept_mask, keep)
        mask = hard if self.mode == "straight_through" else keep
        if mask.requires_grad:
            mask.retain_grad()
        self.masks.setdefault(layer, mask)
        return SoftCut(selection, mask)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_hard_masks_equal_removal(family: str, folds: bool, attention: str) -> None:
    host, inputs = shared(family, attention), shared(family).batch(rows_of("ragged", family))
    plan = make_plan("both", folds=folds)
    with torch.no_grad():
        with pruning(host.model, plan) as trace:
            removed = host.model(**inputs, use_cache=False).logits
        with masking(host.model, plan) as masked_trace:
            masked = host.model(**inputs, use_cache=False).logits
    assert masked.shape[1] == masked_trace.output_columns.shape[1] == trace.lengths[0]
    assert (removed[:, -1] - masked[:, -1]).abs().max() < 1e-3
    assert masked_trace.lengths == trace.lengths
    for layer, columns in enumerate(trace.columns):
        assert torch.equal(columns, masked_trace.columns[layer])
    for hard, soft in zip(trace.stages, masked_trace.stages, strict=True):
        assert torch.equal(hard.positions, soft.positions)


def test_reindexed_positions_agree() -> None:
    host = shared("llava")
    inputs = host.batch(rows_of("ragged", "llava"))
    plan = make_plan("both", positions="reindex")
    with torch.no_grad():
        with pruning(host.model, plan):
            removed = host.model(**inputs, use_cache=False).logits[:, -1]
        with masking(host.model, plan):
            masked = host.model(**inputs, use_cache=False).logits[:, -1]
    assert (removed - masked).abs().max() < 1e-3


@pytest.mark.parametrize("mode", ["straight_through", "soft"])
def test_every_score_gets_a_gradient(mode: str) -> None:
    host = build("llava")
    host.model.requires_grad_(False)
    inputs = host.batch(rows_of("ragged", "llava"))
    plan = Plan(Stage1(ByContent(), 10), [Cut(1, ByContent(), 6), Cut(3, ByContent(), 2)])
    relaxer = Scores({0: 16, 1: 32, 3: 32}, mode)
    labels = inputs["input_ids"].clone()
    labels[:, :-1] = -100
    with masking(host.model, plan, relaxer=relaxer) as trace:
        output = host.model(**inputs)
        answer_loss(output, labels, trace).backward()
    assert output.past_key_values is None
    for layer, weight in relaxer.weights.items():
        assert weight.grad is not None, layer
        assert weight.grad.isfinite().all()
        assert weight.grad.abs().max() > 0
    for layer, mask in relaxer.masks.items():
        context = relaxer.contexts[layer]
        assert mask.grad is not None
        assert (mask.grad[context.mask] != 0).all(), "kept and dropped alike"
        assert context.mask.sum(-1).tolist() == [{1: 10, 3: 6}[layer]] * 4, "among survivors"


def test_dropped_gradients_are_clamped_to_the_kept_ones() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0]], requires_grad=True)
    kept = torch.tensor([[True, True, False, False, False]])
    real = torch.tensor([[True, True, True, True, False]])
    gradient = torch.tensor([[3.0, 4.0, 1e6, -1e6, 7.0]])
    ClampDropped.apply(mask, kept, real).backward(gradient)  # pyright: ignore
    limit = 10 * (12.5**0.5)
    assert mask.grad is not None
    assert torch.allclose(mask.grad, torch.tensor([[3.0, 4.0, limit, -limit, 7.0]]))


def test_pruners_get_the_input_of_their_layer() -> None:
    """Not the states of another layer, and no answers."""
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    relaxer = Scores({2: 32})
    plan = Plan(None, [Cut(2, ByContent(), 6)])
    inputs_seen: list[Tensor] = []
    handle = host.text.layers[1].register_forward_hook(
        lambda _m, _a, out: inputs_seen.append(out[0] if isinstance(out, tuple) else out)
    )
    question_mask = inputs["attention_mask"].bool()
    question_mask[:, -2:] = False
    with masking(host.model, plan, question_mask, relaxer=relaxer):
        host.model(**inputs)
    handle.remove()
    context = relaxer.contexts[2]
    assert torch.equal(context.features[0], inputs_seen[0][0, 3:19])
    assert context.question is None or context.question_mask is not None
    plan = Plan(None, [Cut(2, reducer := ByContent(), 6)])
    with masking(host.model, plan, question_mask):
        host.model(**inputs)
    words = reducer.seen[0]
    assert words.question is not None
    assert words.question_mask is not None
    expected = torch.cat([inputs_seen[0][0, :3], inputs_seen[0][0, 19:22]])
    assert torch.equal(words.question[0][words.question_mask[0]], expected)


def test_merging_inside_the_model_cannot_be_masked() -> None:
    host = shared("llava")
    plan = Plan(None, [Cut(1, ByContent(folds=True), 4)])
    with masking(host.model, plan), pytest.raises(EligoError, match="a method that drops"):
        host.model(**host.batch([[3, IMAGE, 5]]))


def test_gradients_survive_checkpointing() -> None:
    found: list[Any] = []
    for checkpointed in (False, True):
        host = build("llava")
        host.model.train().requires_grad_(False)
        if checkpointed:
            host.model.gradient_checkpointing_enable({"use_reentrant": False})
        relaxer = Scores({0: 16, 1: 32, 3: 32})
        plan = Plan(Stage1(ByContent(), 10), [Cut(1, ByContent(), 6), Cut(3, ByContent(), 2)])
        with masking(host.model, plan, relaxer=relaxer):
            host.model(**host.batch([[3, IMAGE, 5]])).logits[:, -1].square().sum().backward()
        found.append([weight.grad for weight in relaxer.weights.values()])
    for plain, again in zip(*found, strict=True):
        assert torch.allclose(plain, again, rtol=1e-4, atol=1e-6)


def test_scaled_states_differ_from_removal() -> None:
    """Scaling states as in the two-stage pruning design: a zero state is still a key of softmax."""
    host, inputs = shared("llava"), shared("llava").batch(rows_of("one", "llava"))
    plan = make_plan("2")
    layer = plan.layers[0]
    states_seen: list[Tensor] = []
    block = host.model.model.language_model.layers[layer]
    with torch.no_grad():
        with masking(host.model, plan) as trace:
            by_keys = host.model(**inputs).logits
        with masking(host.model, plan, acts_on="states"):
            hook = block.input_layernorm.register_forward_pre_hook(
                lambda _module, args: states_seen.append(args[0])
            )
            by_states = host.model(**inputs).logits
            hook.remove()
    dropped = (states_seen[0] == 0).all(-1).sum().item()
    stage = trace.stages[0]
    assert dropped == (stage.selection.mask.sum() - stage.selection.num_kept.sum()).item() > 0
    assert (by_keys - by_states).abs().max() > 1e-3
