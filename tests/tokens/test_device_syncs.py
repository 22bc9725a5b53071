"""Pruning never waits for the device: no operator copies values to the host.

Run on the CPU, with checks of values turned off as on a GPU.
"""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from benchmarks.tokens.speed import PARTS, default_plan, random_inputs, random_llava
from eligo import selection
from eligo.ops import masked as ragged
from eligo.ops import topk
from eligo.tokens.hooks import context as hooks_context
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.model.layer_pruners import LayerPruner
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import ReducerContext

SYNCS = {"_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select"}


class Syncs(TorchDispatchMode):
    """Records operators that need values on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.split(".")[0]
        if name in SYNCS:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ragged, topk, selection, hooks_context):
        monkeypatch.setattr(module, "values_are_free", lambda *_: False)


def make_context(images: int = 2) -> ReducerContext:
    return ReducerContext(
        features=torch.randn(images, 16, 8),
        mask=torch.ones(images, 16, dtype=torch.bool),
        positions=torch.arange(16).expand(images, 16),
        grid=torch.tensor([[4, 4]] * images),
        question=torch.randn(images, 5, 8),
        question_mask=torch.ones(images, 5, dtype=torch.bool),
        padded=False,
        question_padded=False,
    )


@pytest.mark.parametrize(
    "reducer",
    [
        LayerPruner(8, 8, 2),
        LayerPruner(8, 8, 2, redundancy="mmr"),
        TokenMerger(MergerShape(width=8, dim=8)),
        TokenMerger(MergerShape(kind="question_aware", width=8, question_width=8, dim=8)),
    ],
    ids=["pruner", "pruner_mmr", "simple", "question_aware"],
)
def test_unpadded_selection_needs_no_sync_and_equals_the_padded_one(reducer: Any) -> None:
    context, budget = make_context(), torch.tensor([6, 6])
    with torch.no_grad():
        with Syncs() as syncs:
            found = reducer.select(context, budget)
        careful = reducer.select(replace(context, padded=True, question_padded=True), budget)
    assert not syncs.found
    assert found.indices.equal(careful.indices)
    assert found.scores.equal(careful.scores)
    if careful.assignment is not None:
        assert found.assignment is not None
        assert found.assignment.equal(careful.assignment)


def run(model: Any, plan: Plan | None, inputs: dict[str, Tensor]) -> list[Syncs]:
    """A prompt, and two tokens after it."""
    mask, found = inputs["attention_mask"], []
    with torch.no_grad(), nullcontext() if plan is None else pruning(model, plan):
        cache = DynamicCache()
        for _ in range(3):
            with Syncs() as syncs:
                output = model(**inputs, past_key_values=cache, use_cache=True)
            found.append(syncs)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            inputs = {"input_ids": output.logits[:, -1:].argmax(-1), "attention_mask": mask}
    return found


@pytest.mark.parametrize("batch", [1, 3])
def test_pruned_forward_passes_need_no_sync(batch: int) -> None:
    model = random_llava("narrow", torch.device("cpu"))
    plan = default_plan(model, PARTS["narrow"], 8)
    inputs = random_inputs(model, batch, 8)
    full, pruned = run(model, None, inputs), run(model, plan, inputs)
    assert not pruned[0].found, "counts are read in one list, before the tower runs"
    for step, other in zip(pruned[1:], full[1:], strict=True):
        assert step.found <= other.found
